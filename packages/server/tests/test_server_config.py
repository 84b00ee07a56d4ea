"""Options in a file: what it may hold, how it goes with flags, and that all sources agree."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from llm_engine.errors import InvalidOption
from llm_engine.options import EngineOptions
from llm_stack_server.cli import build_parser, config, main
from llm_stack_server.cli.config_file import add_config_flag, read_config
from llm_stack_server.cli.flags import add_flags, from_flags
from llm_stack_server.config.document import read_document
from llm_stack_server.config.example import example_file, markdown_table, scalar
from llm_stack_server.config.lint import lint
from llm_stack_server.config.options import all_options
from llm_stack_server.errors import StartupError
from llm_stack_server.settings import ServerSettings

DOCS = Path(__file__).parents[3] / "docs" / "configuration.md"
# Values that the checks of the dataclasses allow, where the rule of `other_value` gives one that they do not.
SPECIAL = {
    "api_key": ("team key-1", "sha256:" + "0" * 64),
    "allowed_host": ("a.example", "b"),
    "cors_origin": ("https://chat.example", "*"),
    "otlp_traces_endpoint": "http://localhost:4318/v1/traces",
    "traces_sample_ratio": 0.5,
    "device": "cuda:1",
    "block_size": 32,
    "state_interval": 64,
    "gpu_memory_fraction": 0.5,
    "long_prefill_share": 0.25,
    "policy": "priority",
    "eviction_policy": "lfu",
    "pinned_cache_share": 0.125,
    "pinned_cache_share_per_tenant": 0.125,
    "grammar_backend": "llguidance",  # the other one is an extra
}
# Options that need another one.
NEEDS = {
    "tls_key": {"tls_cert": "a.pem"},
    "tls_client_ca": {"tls_cert": "a.pem"},
    "isolate_cache_by_key": {"api_key": ("key-1",)},
}


def other_value(option):
    """A value of the option that is not its default."""
    if option.name in SPECIAL:
        return SPECIAL[option.name]
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if option.is_list:
        return ("first", "second: #3")
    if option.kind is bool:
        return not option.default
    if option.kind is str:
        return "yes: no # 'quoted\" 010"
    base = 0 if option.is_optional or option.is_required else option.default
    return option.kind(base * 2 + 3)


def as_flags(values):
    words = []
    for name, value in values.items():
        flag = all_options()[name].flag
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            items = value if isinstance(value, tuple) else (value,)
            words += [word for item in items for word in (flag, str(item))]
    return words


def parsed_from(owner, words):
    parser = argparse.ArgumentParser()
    add_config_flag(parser)
    add_flags(parser, owner)
    parsed = parser.parse_args(words)
    read_config(parsed)
    return from_flags(owner, parsed)


@pytest.mark.parametrize("name", all_options())
def test_keywords_flags_and_file_give_equal_objects(name, tmp_path):
    owner = EngineOptions if name in {field.name for field in fields(EngineOptions)} else ServerSettings
    values = {**NEEDS.get(name, {}), name: other_value(all_options()[name])}
    if owner is EngineOptions:
        values = {"model": "m", **values}
    expected = owner(**values)
    if name != "grammar_backend":
        assert expected != owner(**({"model": "other"} if owner is EngineOptions else {}))
    assert parsed_from(owner, as_flags(values)) == expected
    file = tmp_path / "options.yaml"
    file.write_text("".join(f"{key}: {scalar(value)}\n" for key, value in values.items()))
    assert parsed_from(owner, ["--config", str(file)]) == expected
    if owner is EngineOptions:
        assert EngineOptions.from_mapping(values) == expected


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("port: 1\nhost: '::1'\nmcp: true\napi_key: [a, b]\ndrain_timeout_s: 3\n")
    words = ["--config", str(file), "--port", "2", "--no-mcp", "--api-key", "c"]
    found = parsed_from(ServerSettings, words)
    assert found == ServerSettings(port=2, host="::1", api_key=("c",), drain_timeout_s=3.0)
    assert type(found.drain_timeout_s) is float


BAD = [
    ('port: "80"', "1: port: must be a whole number, got the text '80'"),
    ("port: 80.5", "1: port: must be a whole number, got the number 80.5"),
    ("port: 0o20", "1: port: must be a whole number, got the text '0o20'"),
    ("port: 010", "1: port: must be a whole number, got the text '010'"),
    ("port: 12:30", "1: port: must be a whole number, got the text '12:30'"),
    ("port: true", "1: port: must be a whole number, got the truth value true"),
    ("port:", "1: port: must be a whole number, got nothing; leave it out for the default"),
    ("port: [1]", "1: port: must be a whole number, got a list"),
    ("port: {a: 1}", "1: port: must be a whole number, got a mapping"),
    ("host: 7", "1: host: must be text, got the number 7; write it in quotes"),
    ("mcp: yes", "1: mcp: must be true or false, got the text 'yes'"),
    ("overlap: 1", "1: overlap: must be true or false or null, got the number 1"),
    ("max_request_s: fast", "1: max_request_s: must be a number, got the text 'fast'"),
    (
        "served_model_name: a",
        "served_model_name: must be a list of text, such as [first, second], got the text 'a'",
    ),
    ("served_model_name: [a, 1]", "got the number 1; write it in quotes"),
    ("log_level: inof", "must be one of debug, info, warning, error, got 'inof'; did you mean info?"),
    ("\n\nprot: 1", "3: 'prot': there is no such option; did you mean port?"),
    ("max-model-len: 1", "'max-model-len': names have underscores here; did you mean max_model_len?"),
    ("zzzzzzz: 1", "1: 'zzzzzzz': there is no such option"),
    ("port: 1\nhost: a\nport: 2", "3: port: stands on line 1 already"),
    ("<<: {port: 1}", "1: '<<': there is no such option"),
    ("? [a]\n: 1", "1: '': there is no such option"),
    ("- port", "1: must be options and their values"),
    ("port: 1\n  host: a", "2: not valid YAML"),
    ("port: 1\n---\nport: 2", "not valid YAML: but found another document"),
    ("host: *nowhere", "1: not valid YAML"),
    ("host: !!python/object/apply:os.system [id]", "1: host: must be text, got a list"),
    (
        "host: !!python/name:os.system x",
        "1: host: must be text, got the tag python/name:os",
    ),
    ("port: !!int eighty", "1: port: must be a whole number"),
    ("mcp: !!bool yes", "1: mcp: must be true or false"),
    ("host: a\x00b", "not valid YAML (ReaderError)"),
    ("port: " + "[" * 5000, "not valid YAML"),
    ("port: 70000", "1: port: must be between 0 and 65535, got 70000"),
    ("host: a\nblock_size: 17", "2: block_size: must be a power of two from 1 to 256, got 17"),
    ("tls_key: k.pem", "1: tls_key: needs tls_cert"),
]


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_what_is_wrong_in_a_file_is_told_with_its_line(text, expected, tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text(f"{text}\nmodel: m\n" if text[0] != "-" else text)
    assert main(["serve", "--config", str(file)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"llm-stack: error: {file}:")
    assert expected in told
    assert main(["config", "check", str(file)]) == 1
    assert re.sub(r"^(\d+): ", r"\1: error: ", expected) in capsys.readouterr().out


def test_bytes_and_size_are_bounded(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_bytes(b"port: 1\nhost: \xff\n")
    assert main(["serve", "m", "--config", str(file)]) == 1
    assert f"{file}:2: not valid UTF-8" in capsys.readouterr().err
    file.write_bytes(b"#" * (2**20 + 1))
    assert main(["serve", "m", "--config", str(file)]) == 1
    assert "larger than" in capsys.readouterr().err
    assert main(["serve", "m", "--config", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_a_model_must_be_named(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text("")  # a file may be empty
    for words in (["serve"], ["run-batch", "-i", "a", "-o", "b"], ["bench", "throughput"]):
        for more in ([], ["--config", str(file)]):
            assert main([*words, *more]) == 1
            assert "model: name one on the command line, or in a file" in capsys.readouterr().err


def test_several_faults_are_counted_and_no_secret_is_shown(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text("model: m\napi_key: hunter22-hunter22\nport: x\nhost: 1\n")
    assert main(["serve", "--config", str(file)]) == 1
    told = capsys.readouterr().err
    assert "(and 2 more; llm-stack config check lists all)" in told
    file.write_text("model: m\napi_key: [a hunter22-hunter22 b, {hunter22-hunter22: 1}]\n")
    main(["config", "check", str(file)])
    file.write_text("model: m\napi_key: [a hunter22-hunter22 b]\n")
    main(["config", "check", str(file)])
    file.write_text("model: m\napi_key: [hunter22-hunter22, b]\n")
    main(["config", "check", str(file)])
    for form in ("table", "yaml", "json"):
        assert main(["config", "show", "--config", str(file), "--format", form]) == 0
    told = (shown := capsys.readouterr()).out + shown.err + told
    assert "hunter22" not in told
    assert "(hidden)" in told


@pytest.mark.parametrize("command", ["chat", "generate", "run-batch", "bench throughput", "serve"])
def test_commands_take_what_they_know_from_a_file_of_a_server(command, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("model: m\nport: 9\nseed: 7\nprogress: false\nserved_model_name: [n]\nblock_size: 32\n")
    words = command.split() + ["--config", str(file)] + (["x"] if command == "generate" else [])
    words += ["-i", "a", "-o", "b"] if command == "run-batch" else []
    parsed = build_parser({words[0]}).parse_args(words)
    skip = {"profile_start", "progress"} if words[0] == "bench" else set()
    read_config(parsed, skip=skip)
    options = from_flags(EngineOptions, parsed)
    assert (options.model, options.seed, options.block_size) == ("m", 7, 32)
    assert options.progress is (words[0] == "bench")
    if command == "serve":
        assert from_flags(ServerSettings, parsed) == ServerSettings(port=9, served_model_name=("n",))


def test_the_seed_of_a_request_is_not_the_engines(tmp_path):
    from llm_stack_server.cli import session

    file = tmp_path / "options.yaml"
    file.write_text("model: m\nseed: 7\n")
    parsed = build_parser({"generate"}).parse_args(["generate", "x", "--config", str(file), "--seed", "5"])
    assert session.sampling_params(parsed).seed == 5
    assert session.engine_options(parsed).seed == 7
    parsed = build_parser({"generate"}).parse_args(["generate", "x"])
    assert session.engine_options(parsed) == EngineOptions(model="smollm2")


# The linter


def remarks(tmp_path, text):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    file.chmod(0o600)
    return [
        (remark.level, remark.line, remark.option)
        for remark in lint(read_document(file, all_options()), all_options())
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: m\n", []),
        ("model: m\nport: 0\nblock_size: 32\n", []),
        ("port: 0\n", [("warning", 0, "model")]),
        ("model: m\nport: 8000\n", [("note", 2, "port")]),
        ("model: m\nhost: 0.0.0.0\n", [("error", 2, "host")]),
        ("model: m\nhost: gpu-1.example\n", [("error", 2, "host")]),
        ("model: m\nhost: 0.0.0.0\nallow_open: true\n", [("warning", 3, "allow_open")]),
        ("model: m\nallow_open: true\n", [("warning", 2, "allow_open")]),
        ("model: m\nhost: localhost\n", []),
        ("model: m\napi_key: [k]\nhost: 0.0.0.0\n", [("warning", 3, "host")]),
        ("model: m\napi_key: [k]\nallowed_host: [a]\n", [("warning", 3, "allowed_host")]),
        ("model: m\napi_key: ['']\n", [("error", 2, "api_key")]),
        ("model: m\napi_key_file: none.txt\n", [("error", 2, "api_key_file")]),
        ("model: m\ntls_cert: none.pem\n", [("error", 2, "tls_cert")]),
        ("model: ./none\n", [("error", 1, "model")]),
        ("model: none.gguf\ntokenizer: /none.json\n", [("error", 1, "model"), ("error", 2, "tokenizer")]),
        ("model: m\nmcp_server: [nourl]\n", [("error", 2, "mcp_server")]),
        (
            "model: m\nport: -1\nblock_size: 3\nmax_num_seqs: 0\n",
            [("error", line, name) for line, name in ((2, "port"), (3, "block_size"), (4, "max_num_seqs"))],
        ),
        ("model: m\nhost_cache_gib: 1\nenable_prefix_caching: false\n", [("error", 2, "host_cache_gib")]),
        ("model: m\nmax_queued_tokens: 5\n", [("warning", 2, "max_queued_tokens")]),
        ("model: m\nmax_queued_tokens: 5\nmax_concurrent_requests: 2\n", []),
        ("model: m\ntraces_sample_ratio: 0.5\n", [("warning", 2, "traces_sample_ratio")]),
        ("model: m\nlong_prompt_tokens: 5\n", [("warning", 2, "long_prompt_tokens")]),
        (
            "model: m\ngpu_memory_fraction: 0.5\nkv_cache_bytes: 1000\n",
            [("warning", 2, "gpu_memory_fraction")],
        ),
        ("model: m\ngraphs: none\ngraph_memory_gib: 2\n", [("warning", 3, "graph_memory_gib")]),
        (
            "model: m\nmax_stored_responses: 0\nmax_stored_response_bytes: 5\n",
            [("warning", 3, "max_stored_response_bytes")],
        ),
    ],
)
def test_the_linter(tmp_path, text, expected):
    assert remarks(tmp_path, text) == expected


@pytest.mark.parametrize(
    "text", ["grpc_port: 0\n", "mcp: true\n", "otlp_traces_endpoint: http://a/v1/traces\n"]
)
def test_parts_that_are_not_installed(tmp_path, text, monkeypatch):
    assert remarks(tmp_path, "model: m\n" + text) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    name = text.partition(":")[0]
    assert remarks(tmp_path, "model: m\n" + text) == [("error", 2, name)]


def test_secrets_that_others_may_read(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text("model: m\napi_key: [k]\n")
    file.chmod(0o644)
    assert main(["config", "check", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    [remark] = found["remarks"]
    assert (remark["level"], remark["option"], remark["line"]) == ("warning", "api_key", 2)
    assert "chmod 600" in remark["message"]


# Show and init


def test_show_tells_where_each_value_comes_from(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text("model: m\nport: 9\nhost: '::1'\n")
    words = ["config", "show", "--config", str(file), "--host", "127.0.0.2"]
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(all_options())
    assert found["port"] == {"value": 9, "from": f"{file}:2"}
    assert found["host"] == {"value": "127.0.0.2", "from": "flag"}
    assert found["block_size"] == {"value": 16, "from": "default"}
    assert main([*words, "--format", "yaml"]) == 0
    again = tmp_path / "again.yaml"
    again.write_text(capsys.readouterr().out)
    assert parsed_from(ServerSettings, ["--config", str(again)]) == ServerSettings(port=9, host="127.0.0.2")
    assert main([*words, "--block-size", "3"]) == 1


def test_init_writes_a_file_with_every_option_at_its_default(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    assert main(["config", "init", str(file)]) == 0
    assert main(["config", "init", str(file)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["config", "init", str(file), "--overwrite"]) == 0
    assert remarks(tmp_path, file.read_text()) == []
    lines = file.read_text().splitlines()
    names = {f"#{name}:" for name in all_options()}
    every = "\n".join(line[1:] if line.split(" ")[0] in names else line for line in lines)
    file.write_text(every)
    document = read_document(file, all_options())
    assert document.faults == ()
    assert list(document.entries) == list(all_options())
    for name, option in all_options().items():
        assert option.is_required or document.entries[name].value == option.default
    assert main(["config", "init"]) == 0
    assert capsys.readouterr().out == example_file(all_options())


def test_the_documentation_lists_every_option():
    text = DOCS.read_text(encoding="utf-8")
    table = text.partition("<!-- options -->\n")[2].partition("<!-- end of options -->")[0]
    assert table.strip() == markdown_table(all_options().values()).strip(), (
        "python -m llm_stack_server.config.document_options docs/configuration.md writes it anew"
    )


def test_every_option_is_told_and_stands_in_a_group():
    for name, option in all_options().items():
        assert option.help.endswith((".", '"')), name
        assert option.group != "others", name


def test_an_option_that_is_no_field_is_refused_by_name():
    with pytest.raises(InvalidOption, match="did you mean block_size"):
        EngineOptions.from_mapping({"model": "m", "blocksize": 1})
    with pytest.raises(StartupError):
        parsed_from(ServerSettings, ["--config", "/nowhere"])
    assert config._FORMATS.keys() == {"table", "yaml", "json"}
