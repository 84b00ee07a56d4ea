"""Batches of models with an encoder, and sounds to text: tiny random models, and a real one if there."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from llm_engine.encoder_batch import EncoderBatch, EncoderJob, StopRules
from llm_engine.errors import InvalidRequest, StartupError
from llm_engine.transcription import Transcriber
from llm_engine.wav_file import read_wav
from llm_engine.worker.errors import InvalidOption
from llm_models import load_encoder_decoder, resolve

ASSETS = Path(os.environ.get("LLM_STACK_TEST_ASSETS") or Path.home() / ".cache" / "llm-stack" / "test-assets")
SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "init_std": 0.3,
         "suppress_tokens": None, "begin_suppress_tokens": None}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def _reference(kind: str, **config):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = getattr(transformers, f"{kind}Config")(**config)
        return getattr(transformers, f"{kind}ForConditionalGeneration")(built).eval()


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bart")
    reference = _reference("Bart", **SIZES, vocab_size=64, max_position_embeddings=64)
    reference.save_pretrained(folder)
    return reference, load_encoder_decoder(resolve(str(folder)), dtype=torch.float32, device="cpu")


def _wanted(reference, name, job, rules):
    """One job by the reference, which runs the whole sequence again for each token."""
    tokens, made = list(job.prompt), []
    while len(made) < job.max_tokens:
        with torch.no_grad():
            ids = torch.tensor([tokens + made])
            scores = reference(**{name: job.input[None]}, decoder_input_ids=ids).logits[0, -1].clone()
        if job.allowed is not None:
            kept = scores[list(job.allowed)].clone()
            scores[:] = float("-inf")
            scores[list(job.allowed)] = kept
        scores[list(rules.never) + ([] if made else list(rules.not_first))] = float("-inf")
        token = int(scores.argmax())
        if token in rules.ends:
            break
        made.append(token)
    return made


def _jobs():
    generator = torch.Generator().manual_seed(3)
    shapes = [(9, 1, 12), (40, 3, 30), (1, 2, 1), (17, 20, 25), (33, 1, 40), (5, 5, 18)]
    return [
        EncoderJob(
            input=torch.randint(3, 60, (length,), generator=generator),
            prompt=tuple(torch.randint(3, 60, (prompt,), generator=generator).tolist()),
            max_tokens=most,
            allowed=(5, 9, 30) if length == 5 else None,
        )
        for length, prompt, most in shapes
    ]


@pytest.mark.parametrize(("max_rows", "num_pages"), [(6, None), (2, None), (6, 21), (1, 14)])
def test_batches_give_the_tokens_of_one_at_a_time(bart, max_rows, num_pages):
    """Also where rows or pages are few, so that jobs join when others are over."""
    reference, model = bart
    batch = EncoderBatch(model, max_rows=max_rows, max_tokens=48, max_states=48, num_pages=num_pages)
    free = batch.num_free_pages
    jobs = _jobs()
    plain = batch.run(jobs, StopRules(ends=frozenset()))
    assert [len(made) for made in plain] == [job.max_tokens for job in jobs]
    # Rules that bite: tokens that would come, and then an end that comes.
    kept = StopRules(ends=frozenset(), never=(plain[3][4],), not_first=(plain[4][0],))
    rules = replace(kept, ends=frozenset({batch.run(jobs, kept)[1][-1]}))
    made = batch.run(jobs, rules)
    assert made != plain
    assert made == [_wanted(reference, "input_ids", job, rules) for job in jobs]
    assert len(made[1]) < jobs[1].max_tokens
    assert set(made[5]) <= {5, 9, 30}
    assert batch.num_free_pages == free


def test_jobs_that_do_not_fit_are_refused_before_anything_runs(bart):
    _, model = bart
    batch = EncoderBatch(model, max_rows=2, max_tokens=16, max_states=16)
    text, rules = torch.arange(3, 10), StopRules(ends=frozenset())
    good = EncoderJob(input=text, prompt=(2,), max_tokens=3)
    for bad, message in [
        (EncoderJob(input=text, prompt=(), max_tokens=3), "prompt of one token"),
        (EncoderJob(input=text, prompt=(2,), max_tokens=0), "room for one more"),
        (EncoderJob(input=text, prompt=(2,) * 10, max_tokens=7), "exceed 16 tokens"),
        (EncoderJob(input=torch.arange(3, 20), prompt=(2,), max_tokens=3), "17 states; it must be 1 to 16"),
        (EncoderJob(input=torch.zeros(0, dtype=torch.int64), prompt=(2,), max_tokens=3), "0 states"),
    ]:
        with pytest.raises(ValueError, match=message):
            batch.run([good, bad], rules)
    assert batch.run([], rules) == []
    assert len(batch.run([good], rules)[0]) == 3
    with pytest.raises(InvalidOption, match="max_rows"):
        EncoderBatch(model, max_rows=0, max_tokens=16, max_states=16)
    with pytest.raises(InvalidOption, match="one longest sequence takes 2 pages, got 1"):
        EncoderBatch(model, max_rows=1, max_tokens=16, max_states=16, num_pages=1)


def test_a_failure_leaves_no_page_behind(bart, monkeypatch):
    _, model = bart
    batch = EncoderBatch(model, max_rows=2, max_tokens=48, max_states=48)
    free = batch.num_free_pages
    monkeypatch.setattr(model, "encode", lambda inputs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        batch.run(_jobs(), StopRules(ends=frozenset()))
    assert batch.num_free_pages == free


LANGUAGES = {"<|en|>": 259, "<|de|>": 260, "<|fr|>": 261}


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """A tiny random speech model of three languages; features as real ones, but of 2 s."""
    folder = tmp_path_factory.mktemp("speech")
    config = SIZES | {"pad_token_id": 257, "bos_token_id": 257, "eos_token_id": 257}
    reference = _reference("Whisper", **config, vocab_size=280, num_mel_bins=20, max_source_positions=100,
                           max_target_positions=24, decoder_start_token_id=258)  # fmt: skip
    reference.save_pretrained(folder)
    generation = {
        "eos_token_id": 257,
        "decoder_start_token_id": 258,
        "lang_to_id": LANGUAGES,
        "task_to_id": {"translate": 263, "transcribe": 262},
        "no_timestamps_token_id": 264,
        "suppress_tokens": [40, 41, 256],
        "begin_suppress_tokens": [220, 257],
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))
    features = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 20, "chunk_length": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(features))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytewise = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, [])
    )
    bytewise.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = tokenizers.decoders.ByteLevel()
    specials = [
        "<|unused|>",
        "<|end|>",
        "<|start|>",
        *LANGUAGES,
        "<|transcribe|>",
        "<|translate|>",
        "<|silent|>",
    ]
    bytewise.add_special_tokens(specials)
    bytewise.save(str(folder / "tokenizer.json"))
    return reference, folder, Transcriber(str(folder), device="cpu", max_num_seqs=3)


def _sounds():
    time = np.arange(24000, dtype=np.float32) / 16000
    return [np.sin(2 * np.pi * pitch * time[:length]) * loud for pitch, length, loud in
            [(220, 24000, 0.4), (1800, 9000, 0.9), (3500, 3, 0.1), (90, 16000, 0.7)]]  # fmt: skip


def test_languages_are_heard_and_prompts_are_as_the_model_was_trained(speech):
    reference, folder, transcriber = speech
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    rules = StopRules(ends=frozenset({257}), never=(40, 41, 256, *range(264, 280)), not_first=(220, 257))
    sounds = _sounds()
    heard = transcriber.transcribe(sounds)
    told = transcriber.transcribe(sounds, language="fr", max_tokens=7)
    assert transcriber.languages == ("en", "de", "fr")
    for sound, own, forced in zip(sounds, heard, told, strict=True):
        features = extractor(sound, sampling_rate=16000, return_tensors="pt").input_features[0]
        with torch.no_grad():
            scores = reference(input_features=features[None], decoder_input_ids=torch.tensor([[258]])).logits[
                0, 0
            ]
        language = max(LANGUAGES, key=lambda name: float(scores[LANGUAGES[name]]))
        assert own.language == language.strip("<|>")
        assert forced.language == "fr"
        for made, code, most in ((own, LANGUAGES[language], 20), (forced, 261, 7)):
            job = EncoderJob(input=features, prompt=(258, code, 262, 264), max_tokens=most)
            assert made.token_ids == _wanted(reference, "input_features", job, rules)
            assert made.text == transcriber._tokenizer.decode(made.token_ids).strip()


def test_bad_sounds_and_options_are_named(speech, tmp_path):
    _, folder, transcriber = speech
    text = tmp_path / "a.wav"
    text.write_text("no sound")
    good = _sounds()[0]
    for field, sound, options in [
        ("sounds: a sound lasts 0.0 s", np.zeros(0, np.float32), {}),
        ("sounds: a sound lasts 2.0 s; it must be up to 2 s", np.zeros(32001, np.float32), {}),
        ("sounds: must be floats", np.zeros((2, 5), np.float32), {}),
        ("sounds: must be floats", np.zeros(5, np.int16), {}),
        ("sounds: samples must be finite", np.full(5, np.nan), {}),
        ("sounds: .*absent.wav is no WAV file", tmp_path / "absent.wav", {}),
        ("sounds: .*a.wav is no WAV file that can be read: it does not begin as one", text, {}),
        ("language: 'xx' is none of en, de, fr", good, {"language": "xx"}),
        ("max_tokens: must be from 1 to 20, got 21", good, {"max_tokens": 21}),
        ("max_tokens: must be from 1 to 20, got 0", good, {"max_tokens": 0}),
    ]:
        with pytest.raises(InvalidRequest, match=field):
            transcriber.transcribe([good, sound], **options)
    (folder / "preprocessor_config.json").rename(folder / "hidden.json")
    with pytest.raises(StartupError, match="preprocessor_config"):
        Transcriber(str(folder), device="cpu")
    (folder / "hidden.json").rename(folder / "preprocessor_config.json")


def _wav(path, samples, *, kind, bits, rate=16000, channels=1, extra=b"", extensible=False):
    data = samples.tobytes()
    frame = channels * bits // 8
    head = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, rate, rate * frame, frame, bits)
    if extensible:
        head += struct.pack("<HHIH14s", 22, bits, 0, kind, b"\0" * 14)
    chunks = (
        b"fmt " + struct.pack("<I", len(head)) + head + extra + b"data" + struct.pack("<I", len(data)) + data
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    return path


def test_wav_files_of_each_format(tmp_path):
    wave = np.array([[0.5, -0.5], [0.25, 1.0], [-1.0, 0.0]])
    path, odd = tmp_path / "a.wav", b"LIST" + struct.pack("<I", 3) + b"abc\0"
    for layout, full, kind, bits in [
        ("<i2", 2**15, 1, 16),
        ("<i4", 2**31, 1, 32),
        ("<f4", 1, 3, 32),
        ("<f8", 1, 3, 64),
    ]:
        stored = np.clip(wave * full, -full, full - 1 if kind == 1 else full).astype(layout)
        for options in ({}, {"extra": odd}, {"extensible": True}):
            found = read_wav(_wav(path, stored, kind=kind, bits=bits, channels=2, rate=8000, **options))
            assert found.rate == 8000
            assert found.samples.dtype == np.float32
            np.testing.assert_allclose(found.samples, wave, atol=4e-5)


def test_wav_files_that_cannot_be_read(tmp_path):
    samples, path = np.zeros(8, "<i2"), tmp_path / "a.wav"
    with pytest.raises(ValueError, match="format 1 with 8 bits"):
        read_wav(_wav(path, samples, kind=1, bits=8))
    with pytest.raises(ValueError, match="format 17 with 16 bits"):
        read_wav(_wav(path, samples, kind=17, bits=16))
    whole = _wav(path, samples, kind=1, bits=16).read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut off|no format or no data|does not begin"):
            read_wav(path)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """whisper-tiny.en, its recordings and their texts."""
    if not (ASSETS / "whisper-tiny.en" / "model.bin").is_file():
        pytest.skip("needs python scripts/fetch_test_assets.py --group speech")
    spec = importlib.util.spec_from_file_location(
        "engine_whisper_asset", Path(__file__).with_name("engine_whisper_asset.py")
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.convert(ASSETS / "whisper-tiny.en", tmp_path_factory.mktemp("whisper"))


def test_a_real_model_writes_down_real_speech(whisper):
    transcriber = Transcriber(str(whisper), device="cpu", max_num_seqs=2)
    recordings = ASSETS / "speech" / "en"
    names = ("quick_brown_fox", "hello_world", "counting")
    fox, hello, counting = transcriber.transcribe([recordings / f"{name}.wav" for name in names])
    assert fox.text == (recordings / "quick_brown_fox.txt").read_text().strip()
    assert hello.text == (recordings / "hello_world.txt").read_text().strip()
    # It writes digits where the text beside the recording spells the numbers out.
    assert "".join(letter for letter in counting.text if letter.isdigit()) == "12345678910"
    assert transcriber.transcribe([recordings / "hello_world.wav"], language="en")[0] == hello
    with pytest.raises(InvalidRequest, match="English only"):
        transcriber.transcribe([recordings / "hello_world.wav"], language="de")
