//! Owns `\s+$`: white space at the ends of lines, cut out of the text, with the rest left as it is.
//!
//! In the library's engine `$` is the end of the text or the place before a line feed.

use super::cursor::Cursor;
use crate::unicode::SPACE;

/// Call `emit` with the bounds of every piece, the white space and what lies between.
#[inline]
pub(super) fn scan(cursor: &Cursor, mut emit: impl FnMut(usize, usize)) {
    let (mut at, mut gap) = (0, 0);
    while at < cursor.text.len() {
        let run = cursor.skip(at, SPACE);
        if run == at {
            at += cursor.class(at).1;
            continue;
        }
        // A match that ends before the last line feed goes on behind it, and finds nothing more in the run.
        if let Some(end) = line_end(cursor, at, run) {
            if gap < at {
                emit(gap, at);
            }
            emit(at, end);
            gap = end;
        }
        at = run;
    }
    if gap < at {
        emit(gap, at);
    }
}

/// The last end of a line behind the first character of the white space `at..run`.
fn line_end(cursor: &Cursor, at: usize, run: usize) -> Option<usize> {
    if run == cursor.text.len() {
        return Some(run);
    }
    (at + 1..run).rev().find(|&end| cursor.text[end] == b'\n')
}
