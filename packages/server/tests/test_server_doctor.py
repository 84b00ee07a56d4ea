"""`llm-stack doctor`: what it tells is so, and what is broken ends with 1."""

from __future__ import annotations

import json
import resource
import socket
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
import tokenizers
import torch
import transformers
from llm_kernels.ops import selected
from llm_stack_server.cli import main
from llm_stack_server.diagnosis import devices, host
from llm_stack_server.diagnosis.checkpoint import look_at_model


def doctor(capsys, *arguments):
    code = main(["doctor", "--json", "--port", "0", *arguments])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == (code == 0)
    return code, {(finding["section"], finding["name"]): finding for finding in told["findings"]}


def only(findings, name):
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def test_this_machine_is_told(capsys):
    code, found = doctor(capsys)
    assert code == 0
    assert found["versions", "torch"]["value"] == version("torch")
    ops = found["kernels", "cpu: torch"]["value"].split(", ")
    assert all(selected(op, "cpu", torch.float32) == "torch" for op in ops)
    if not torch.cuda.is_available():
        assert "CUDA" in found["kernels", "not triton"]["value"]


def test_the_text_has_a_line_for_each_finding(capsys):
    code = main(["doctor", "smollm2", "--offline", "--port", "0"])
    text = capsys.readouterr().out
    assert code == 0
    assert "\nmodel\n" in text
    assert "LlamaForCausalLM (native, decoder)" in text
    assert "49,152 tokens, fast path" in text
    assert text.splitlines()[-1].startswith("0 broken (X), ")


def test_a_config_alone_is_no_model(tmp_path, capsys):
    transformers.Qwen3Config(num_hidden_layers=1).save_pretrained(tmp_path)
    code, found = doctor(capsys, str(tmp_path), "--offline")
    assert code == 1
    assert found["model", "checkpoint"]["level"] == "broken"  # a config alone is no model
    assert found["model", "checkpoint"]["value"]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{% for m in messages %}<tool_call>{{ m.content }}{% endfor %}", "hermes (--output-format auto)"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "none shown: all is text"),
    ],
)
def test_the_format_is_that_of_the_template(tmp_path, template, told):
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        dtype=torch.bfloat16,
    )
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    letters = {letter: index for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    tokenizers.Tokenizer(tokenizers.models.BPE(letters, [])).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    findings = list(look_at_model(str(tmp_path), offline=True))
    assert only(findings, "tools and reasoning").value == told
    assert only(findings, "weights").value.startswith("0.00 GiB, ")
    assert all(finding.level == "ok" for finding in findings)


def test_a_checkpoint_of_no_known_architecture_is_broken(tmp_path):
    transformers.Qwen3Config(num_hidden_layers=1).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["NoSuchForCausalLM"]}))
    findings = list(look_at_model(str(tmp_path), offline=True))
    assert findings[-1].level == "broken"


def test_a_missing_part_and_another_version_are_broken(monkeypatch):
    def found(name):
        if name == "llm-stack-kernels":
            raise PackageNotFoundError(name)
        return "9.9.9" if name == "llm-stack-engine" else version(name)

    monkeypatch.setattr(host, "version", found)
    findings = list(host.look_at_versions())
    broken = {finding.name for finding in findings if finding.level == "broken"}
    assert broken == {"llm-stack-kernels", "llm-stack-engine"}
    assert "9.9.9" in only(findings, "llm-stack-engine").value


def test_what_cannot_be_imported_is_a_finding(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "llm_engine.kernel_catalog", None)
    code, found = doctor(capsys)
    assert code == 1
    assert "kernel_catalog" in found["kernels", "import"]["value"]


@pytest.mark.parametrize(("flags", "level"), [("fpu sse4_2", "warning"), ("fpu avx2 fma", "ok")])
def test_a_processor_without_avx2_is_slow(tmp_path, monkeypatch, flags, level):
    monkeypatch.setattr(host.platform, "machine", lambda: "x86_64")
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n")
    findings = list(host.look_at_processor(info))
    assert only(findings, "name").value == "Some CPU"
    assert only(findings, "features").level == level


def test_memory_and_its_limit(tmp_path):
    info, limit = tmp_path / "meminfo", tmp_path / "max"
    info.write_text("MemTotal:       8000000 kB\nMemAvailable:   1048576 kB\n")
    limit.write_text("2147483648\n")
    findings = list(host.look_at_memory(info, limit))
    assert (findings[0].value, findings[0].level) == ("1.0 GiB", "warning")
    assert findings[1].value == "2.0 GiB"
    limit.write_text("max\n")
    assert len(list(host.look_at_memory(info, limit))) == 1
    (finding,) = host.look_at_memory(tmp_path / "none", limit)
    assert finding.value == "unknown on this system"


@pytest.mark.parametrize(("soft", "level"), [(1024, "warning"), (65_536, "ok")])
def test_few_open_files(monkeypatch, soft, level):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, 1 << 20) if kind == 7 else (-1, -1))
    assert resource.RLIMIT_NOFILE == 7
    assert only(host.look_at_limits(), "open files").level == level


def test_a_taken_port_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (finding,) = host.look_at_port("127.0.0.1", port)
    assert finding.level == "warning"
    assert "in use" in finding.value


class Gpus:
    """What torch tells of GPUs: each its free and whole memory, or an error."""

    def __init__(self, monkeypatch, *memories):
        self._memories = memories
        for name, told in {
            "is_available": lambda: bool(memories),
            "device_count": lambda: len(memories),
            "get_device_capability": lambda index: (9, 0),
            "get_device_name": lambda index: "Some GPU",
            "mem_get_info": self._memory,
        }.items():
            monkeypatch.setattr(torch.cuda, name, told)

    def _memory(self, index):
        found = self._memories[index]
        if isinstance(found, Exception):
            raise found
        return found


def test_every_gpu_is_told_with_its_memory(monkeypatch):
    gib = 2**30
    Gpus(monkeypatch, (130 * gib, 140 * gib), (10 * gib, 140 * gib), RuntimeError("CUDA error: lost\nmore"))
    findings = list(devices.look_at_gpus())
    assert only(findings, "cuda:0").value == "Some GPU, compute capability 9.0, 130.0 of 140.0 GiB free"
    assert [only(findings, f"cuda:{index}").level for index in range(3)] == ["ok", "warning", "broken"]
    assert only(findings, "cuda:2").value.endswith("CUDA error: lost")


@pytest.mark.parametrize(("has_driver", "level"), [(False, "ok"), (True, "broken")])
def test_a_driver_without_gpus_is_broken(monkeypatch, tmp_path, has_driver, level):
    Gpus(monkeypatch)
    driver = tmp_path / "version"
    if has_driver:
        driver.write_text("NVRM")
    monkeypatch.setattr(devices, "_DRIVER_FILE", driver)
    assert only(devices.look_at_gpus(), "devices").level == level
