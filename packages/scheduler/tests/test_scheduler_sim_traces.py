"""Trace readers: round trips, prompts equal where the trace says so, errors that name line and field."""

import json

import numpy as np
import pytest
from llm_kvcache import block_hashes
from llm_scheduler.sim import (
    RequestSpec,
    SyntheticSpec,
    TenantSpec,
    TraceError,
    TraceFormat,
    Uniform,
    Workload,
    read_trace,
    synthesize,
    write_json_trace,
)


def write(tmp_path, text, name="trace.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def assert_same(left, right):
    assert len(left) == len(right)
    for index in range(len(left)):
        mine, theirs = left.spec(index), right.spec(index)
        for name in RequestSpec.__dataclass_fields__:
            if name != "token_ids":
                assert getattr(mine, name) == getattr(theirs, name), name
        assert left.prompt(index).tolist() == right.prompt(index).tolist()


# The simulator's own format


def test_a_workload_comes_back_from_its_trace(tmp_path):
    spec = SyntheticSpec(
        num_requests=80,
        rate=3.0,
        prompt_tokens=Uniform(1, 40),
        output_tokens=Uniform(1, 9),
        max_tokens=9,
        tenants=(TenantSpec(name="a"), TenantSpec(name="b", share=0.3, priority=-4)),
        prefix_groups=3,
        prefix_tokens=Uniform(5, 50),
        prefix_share=0.6,
        turns=Uniform(1, 4),
        think_s=0.5,
        deadline_s=4.0,
    )
    workload = synthesize(spec, seed=3)
    write_json_trace(tmp_path / "t.jsonl", workload)
    assert_same(read_trace(tmp_path / "t.jsonl"), workload)


def test_prompt_ids_are_read_as_they_stand(tmp_path):
    path = write(tmp_path, '{"token_ids": [5, 6, 7], "output_tokens": 2, "arrival_s": 1}\n')
    workload = read_trace(path)
    assert workload.prompt(0).tolist() == [5, 6, 7]
    write_json_trace(tmp_path / "again.jsonl", workload)
    assert_same(read_trace(tmp_path / "again.jsonl"), workload)


def test_a_prefix_group_gives_equal_first_tokens(tmp_path):
    line = {"prompt_tokens": 40, "output_tokens": 1, "prefix_group": "g", "prefix_tokens": 30}
    longer = {**line, "prefix_tokens": 35}
    path = write(tmp_path, "\n".join(map(json.dumps, [line, longer, {**line, "prefix_group": "h"}])))
    workload = read_trace(path)
    first, second, third = (workload.prompt(index) for index in range(3))
    assert (first[:30] == second[:30]).all()
    assert (first[30:] != second[30:]).any()
    assert (first != third).all()


def test_a_conversation_carries_prompt_and_answer(tmp_path):
    lines = [
        {"id": "a", "prompt_tokens": 4, "output_tokens": 3},
        {"id": "b", "prompt_tokens": 2, "output_tokens": 1, "after": "a", "continues": True, "arrival_s": 5},
        {"prompt_tokens": 2, "output_tokens": 1, "after": "b", "continues": True},
    ]
    workload = read_trace(write(tmp_path, "\n".join(map(json.dumps, lines))))
    assert workload.prompt_tokens.tolist() == [4, 9, 12]
    first, second, third = (workload.prompt(index) for index in range(3))
    assert second[:4].tolist() == first.tolist()
    assert second[4:7].tolist() == workload.output(0).tolist()
    assert third[:9].tolist() == second.tolist()


GOOD = {"prompt_tokens": 4, "output_tokens": 3}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{", ""),
        ("[]", ""),
        (json.dumps({**GOOD, "promt_tokens": 4}), "promt_tokens"),
        (json.dumps({"output_tokens": 3}), "prompt_tokens"),
        (json.dumps({"prompt_tokens": 3}), "output_tokens"),
        (json.dumps({**GOOD, "output_tokens": 0}), "output_tokens"),
        (json.dumps({**GOOD, "prompt_tokens": 2.5}), "prompt_tokens"),
        (json.dumps({**GOOD, "arrival_s": -1}), "arrival_s"),
        (json.dumps({**GOOD, "arrival_s": "soon"}), "arrival_s"),
        (json.dumps({**GOOD, "max_tokens": 2}), "max_tokens"),
        (json.dumps({**GOOD, "token_ids": [1, -1, 2, 3]}), "token_ids"),
        (json.dumps({**GOOD, "token_ids": [1, 2]}), "token_ids"),
        (json.dumps({**GOOD, "prefix_group": "g"}), "prefix_tokens"),
        (json.dumps({**GOOD, "prefix_group": "g", "prefix_tokens": 5}), "shared"),
        (json.dumps({**GOOD, "shared": [["g"]]}), "shared"),
        (json.dumps({**GOOD, "tenant": 3}), "tenant"),
        (json.dumps({**GOOD, "priority": True}), "priority"),
        (json.dumps({**GOOD, "deadline_s": 0}), "deadline_s"),
        (json.dumps({**GOOD, "after": "nobody"}), "after"),
        (json.dumps({**GOOD, "id": "a"}), "id"),
        (json.dumps({**GOOD, "continues": True}), "continues"),
        (json.dumps({**GOOD, "continues": 1}), "continues"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, field):
    path = write(tmp_path, json.dumps({**GOOD, "id": "a"}) + "\n\n" + line + "\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path, TraceFormat.JSONL)
    assert (caught.value.path, caught.value.line, caught.value.field) == (str(path), 3, field)
    assert str(path) in str(caught.value)


# Azure

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900+00:00,879,0
"""


def test_an_azure_trace_is_read(tmp_path):
    workload = read_trace(write(tmp_path, AZURE))
    assert workload.arrival_s.tolist() == pytest.approx([0.0, 4.314579, 60.0])
    assert workload.prompt_tokens.tolist() == [374, 396, 879]
    assert workload.output_tokens.tolist() == [44, 109, 1]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("yesterday,1,2", "TIMESTAMP"),
        ("2023-11-16 18:15:40,1,2", "TIMESTAMP"),
        ("2023-11-16 18:15:47,x,2", "ContextTokens"),
        ("2023-11-16 18:15:47,0,2", "ContextTokens"),
        ("2023-11-16 18:15:47,5,-2", "GeneratedTokens"),
        ("2023-11-16 18:15:47,5", ""),
    ],
)
def test_a_bad_azure_row_is_named(tmp_path, row, field):
    path = write(tmp_path, "".join(AZURE.splitlines(keepends=True)[:2]) + row + "\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (3, field)


# BurstGPT

BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,Conversation log
50,ChatGPT,12,0,12,API log
118.5,ChatGPT,417,276,693,API log
"""


def test_a_burstgpt_trace_is_read_and_failures_are_left_out(tmp_path):
    workload = read_trace(write(tmp_path, BURSTGPT))
    assert workload.arrival_s.tolist() == [0.0, 40.0, 113.5]
    assert workload.prompt_tokens.tolist() == [472, 1087, 417]
    assert workload.output_tokens.tolist() == [18, 230, 276]
    assert [workload.spec(index).tenant for index in range(3)] == ["ChatGPT", "GPT-4", "ChatGPT"]


def test_a_missing_column_is_named(tmp_path):
    path = write(tmp_path, BURSTGPT.replace("Response tokens", "Answer"))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (1, "Response tokens")


# Mooncake


def mooncake(**fields):
    line = {"timestamp": 27482, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 2353]}
    return json.dumps({**line, **fields}) + "\n"


def test_mooncake_requests_share_the_blocks_whose_hash_ids_are_equal(tmp_path):
    text = mooncake() + mooncake(timestamp=30482, hash_ids=[46, 47, 99]) + mooncake(hash_ids=[1, 47, 2353])
    workload = read_trace(write(tmp_path, text))
    assert workload.arrival_s.tolist() == [0.0, 3.0, 0.0]
    first, second, third = (block_hashes(workload.prompt(index), 16) for index in range(3))
    assert len(first) == 1200 // 16
    assert first[:64] == second[:64]
    assert not set(first[64:]) & set(second[64:])
    assert not set(first) & set(third)
    assert np.array_equal(workload.prompt(0)[512:], workload.prompt(2)[512:])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": 27481}, "timestamp"),
        ({"input_length": 0}, "input_length"),
        ({"output_length": "many"}, "output_length"),
        ({"hash_ids": [1, 2]}, "hash_ids"),
        ({"hash_ids": [1, 2, "3"]}, "hash_ids"),
        ({"hash_ids": 3}, "hash_ids"),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path, fields, field):
    path = write(tmp_path, mooncake() + mooncake(**fields))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (2, field)


def test_a_public_trace_becomes_one_of_our_own(tmp_path):
    path = write(tmp_path, mooncake() + mooncake(hash_ids=[46, 5, 6]))
    workload = read_trace(path)
    write_json_trace(tmp_path / "ours.jsonl", workload)
    assert_same(read_trace(tmp_path / "ours.jsonl"), workload)


# Any file


def test_files_that_are_no_trace_are_refused(tmp_path):
    for text in ["", "a,b\n1,2\n"]:
        with pytest.raises(TraceError):
            read_trace(write(tmp_path, text))
    with pytest.raises(TraceError, match="absent"):
        read_trace(tmp_path / "absent.jsonl")


def test_only_the_first_requests_are_read(tmp_path):
    path = write(tmp_path, AZURE + "nonsense\n")
    assert len(read_trace(path, max_requests=2)) == 2


def test_a_workload_can_be_scaled_and_cut():
    specs = [RequestSpec(prompt_tokens=1, output_tokens=1, arrival_s=float(t)) for t in range(4)]
    workload = Workload.from_specs(specs)
    assert workload.scaled(4.0).arrival_s.tolist() == [0.0, 0.25, 0.5, 0.75]
    assert_same(workload.first(2), Workload.from_specs(specs[:2]))
