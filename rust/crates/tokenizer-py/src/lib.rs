//! Python bindings.
use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
fn native(_m: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
