"""GPUs that this build of torch cannot use are named before anything is loaded. The devices are made up."""

import time

import pytest
import torch
from llm_engine import LLM
from llm_engine.errors import StartupError
from llm_engine.worker.devices import pick_device
from llm_engine.worker.errors import InvalidOption
from llm_engine.worker.gpu_support import check_architecture, check_no_gpu_is_passed_over

BUILT_FOR = ["sm_80", "sm_86", "sm_90"]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose architecture is set with `gpu(major, minor)`."""

    def make(major, minor, built_for=BUILT_FOR):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Made-up GPU")
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)

    return make


@pytest.mark.parametrize(("major", "minor"), [(6, 1), (7, 5), (10, 0), (12, 0)])
def test_an_architecture_without_code_is_named_with_those_that_have_it(gpu, major, minor):
    gpu(major, minor)
    with pytest.raises(InvalidOption, match=f"sm_{major}{minor}.*sm_80, sm_86, sm_90") as caught:
        check_architecture(torch.device("cuda", 0))
    assert caught.value.field == "device"


@pytest.mark.parametrize(
    ("major", "minor", "built_for"),
    [
        (8, 0, BUILT_FOR),
        (8, 9, BUILT_FOR),
        (9, 0, ["sm_90a"]),
        (12, 0, [*BUILT_FOR, "compute_90"]),
        (10, 3, ["sm_100"]),
        (9, 0, []),
    ],
)
def test_what_has_code_is_taken(gpu, major, minor, built_for):
    gpu(major, minor, built_for)
    check_architecture(torch.device("cuda", 0))


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_a_start_on_such_a_gpu_ends_within_seconds_in_one_line(gpu, device):
    gpu(6, 1)
    begun_s = time.monotonic()
    with pytest.raises(StartupError, match=r"Made-up GPU.*sm_61") as caught:
        LLM(model="smollm2", device=device, progress=False)
    assert time.monotonic() - begun_s < 10
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("cuda", "why"), [(None, "CPUs only"), ("12.8", "CUDA 12.8.*driver")])
def test_the_cpu_is_not_taken_silently_where_there_is_a_gpu(monkeypatch, tmp_path, cuda, why):
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(InvalidOption, match=f"NVIDIA GPU.*{why}.*device=cpu"):
        check_no_gpu_is_passed_over(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_no_gpu_is_passed_over(tmp_path)  # hidden on purpose


def test_the_cpu_is_taken_where_there_is_no_gpu_or_where_it_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check_no_gpu_is_passed_over(tmp_path)
    assert pick_device("cpu") == torch.device("cpu")
