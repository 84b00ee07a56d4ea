"""Owns offline transcription: sounds to text by a speech model; knows nothing of HTTP or the engine core.

The log-mel features come from the feature extractor that transformers has for the checkpoint's
`preprocessor_config.json`. Everything else, encoder and decoder, runs here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from llm_models import load_encoder_decoder, resolve
from llm_tokenizer import Tokenizer
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.encoder_batch import EncoderBatch, EncoderJob, StopRules
from llm_engine.errors import InvalidRequest, StartupError
from llm_engine.wav_file import read_wav
from llm_engine.worker.devices import pick_device, pick_dtype

Sound: TypeAlias = str | PathLike[str] | NDArray[np.float32]
"""A WAV file, or samples in [-1, 1] of one channel; at the model's rate (16 kHz)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What was heard.

    Attributes:
        text: The words.
        token_ids: The tokens of `text`.
        language: Code of the language, for models of several; else None.
    """

    text: str
    token_ids: list[int]
    language: str | None


class Transcriber:
    """A speech model, ready to transcribe sounds of up to the length it was trained on (30 s).

    Args:
        model: As in `LLM`: a folder or a name on the hub.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        max_num_seqs: Most sounds at a time.
        offline: Fetch nothing.

    Raises:
        ModelError: As `LLM`, or the model has no encoder.
        StartupError: The folder says nothing of its features, or transformers is not installed.
        InvalidOption: An option has a value that cannot work.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_num_seqs: int = 8,
        offline: bool = False,
    ) -> None:
        files = resolve(model, offline=offline)
        where = pick_device(device)
        self._features = _Features(files.path)
        self._tokenizer = Tokenizer.from_file(files.tokenizer_path)
        self._model = load_encoder_decoder(files, dtype=pick_dtype(dtype, where, files.config), device=where)
        self._tokens = _SpecialTokens.read(files.config, files.generation_config)
        self._max_tokens = self._model.spec.max_positions
        self._batch = EncoderBatch(
            self._model,
            max_rows=max_num_seqs,
            max_tokens=self._max_tokens,
            max_states=self._model.encoder_spec.max_positions,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages; empty for a model of one language."""
        return tuple(self._tokens.languages)

    def transcribe(
        self, sounds: Sequence[Sound], *, language: str | None = None, max_tokens: int | None = None
    ) -> list[Transcript]:
        """Transcribes sounds, several at a time.

        Args:
            sounds: See `Sound`.
            language: Code such as `en`; None: heard from each sound.
            max_tokens: Most tokens of a transcript; None: what the model has positions for.

        Raises:
            InvalidRequest: A sound cannot be read, is empty or too long; `language` is not known;
                `max_tokens` is not from 1 to what there is room for.
        """
        samples = [self._features.samples_of(sound) for sound in sounds]
        inputs = [self._features.spectrogram(one).to(self._model.device) for one in samples]
        prompts = self._prompts(inputs, language)
        room = self._max_tokens - max((len(prompt) for prompt in prompts), default=0)
        if max_tokens is not None and not 0 < max_tokens <= room:
            raise InvalidRequest("max_tokens", f"must be from 1 to {room}, got {max_tokens}")
        jobs = [
            EncoderJob(input=one, prompt=prompt, max_tokens=max_tokens or room)
            for one, prompt in zip(inputs, prompts, strict=True)
        ]
        outputs = self._batch.run(jobs, self._tokens.rules)
        names = {token: code for code, token in self._tokens.languages.items()}
        return [
            Transcript(
                text=self._tokenizer.decode(tokens).strip(),
                token_ids=tokens,
                language=next((names[token] for token in prompt if token in names), None),
            )
            for tokens, prompt in zip(outputs, prompts, strict=True)
        ]

    def _prompts(self, inputs: Sequence[Tensor], language: str | None) -> list[tuple[int, ...]]:
        tokens = self._tokens
        if not tokens.languages:
            if language not in (None, "en"):
                raise InvalidRequest("language", f"the model knows English only, not {language!r}")
            return [(tokens.start, *tokens.no_timestamps)] * len(inputs)
        if language is None:
            allowed = tuple(tokens.languages.values())
            jobs = [
                EncoderJob(input=one, prompt=(tokens.start,), max_tokens=1, allowed=allowed) for one in inputs
            ]
            heard = [made[0] for made in self._batch.run(jobs, StopRules(ends=frozenset()))]
        elif language in tokens.languages:
            heard = [tokens.languages[language]] * len(inputs)
        else:
            known = ", ".join(tokens.languages)
            raise InvalidRequest("language", f"{language!r} is none of {known}")
        return [(tokens.start, code, *tokens.task, *tokens.no_timestamps) for code in heard]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpecialTokens:
    """What `generation_config.json` says of a speech model's tokens.

    Attributes:
        start: First of the decoder's sequence.
        languages: Token by code of the language; empty for models of one.
        task: Token that asks for a transcript, for models that translate too.
        no_timestamps: Token that asks for text alone.
        rules: What ends a transcript and what never comes.
    """

    start: int
    languages: Mapping[str, int]
    task: tuple[int, ...]
    no_timestamps: tuple[int, ...]
    rules: StopRules

    @classmethod
    def read(cls, config: Mapping[str, Any], generation: Mapping[str, Any]) -> _SpecialTokens:
        facts = {**config, **{key: value for key, value in generation.items() if value is not None}}
        ends, start = facts.get("eos_token_id"), facts.get("decoder_start_token_id")
        if not isinstance(start, int) or not isinstance(ends, int | list):
            raise StartupError("ConfigError", "the configs have no decoder_start_token_id or no eos_token_id")
        silent = facts.get("no_timestamps_token_id")
        languages, tasks = facts.get("lang_to_id") or {}, facts.get("task_to_id") or {}
        return cls(
            start=start,
            languages={name.strip("<|>"): token for name, token in languages.items()},
            task=tuple(tasks[name] for name in ("transcribe",) if name in tasks),
            no_timestamps=() if silent is None else (silent,),
            rules=StopRules(
                ends=frozenset([ends] if isinstance(ends, int) else ends),
                # Where no times are asked for, none may come.
                never=tuple(facts.get("suppress_tokens") or ()) + _timestamps(silent, facts),
                not_first=tuple(facts.get("begin_suppress_tokens") or ()),
            ),
        )


def _timestamps(no_timestamps: int | None, facts: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens of times, which follow the one that asks for none."""
    return () if no_timestamps is None else tuple(range(no_timestamps, int(facts["vocab_size"])))


class _Features:
    """From samples to the spectrogram that the encoder takes."""

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoFeatureExtractor
        except ImportError as error:
            advice = "features of sounds need transformers: install llm-stack-models[fallback]"
            raise StartupError("ImportError", advice) from error
        try:
            self._extractor: Any = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            reason = f"{folder} has no usable preprocessor_config.json: {error}"
            raise StartupError("ConfigError", reason) from error
        self._rate = int(self._extractor.sampling_rate)

    def samples_of(self, sound: Sound) -> NDArray[np.float32]:
        """Samples in [-1, 1] at the model's rate.

        Raises:
            InvalidRequest: They cannot be had, are none, or too many.
        """
        samples = np.asarray(sound) if isinstance(sound, np.ndarray) else self._read(Path(sound))
        if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
            raise InvalidRequest("sounds", "must be floats [samples], or the name of a WAV file")
        most = int(self._extractor.n_samples)
        if not 0 < len(samples) <= most:
            lasts, longest = f"{len(samples) / self._rate:.1f} s", f"{most / self._rate:g} s"
            raise InvalidRequest("sounds", f"a sound lasts {lasts}; it must be up to {longest}")
        if not np.isfinite(samples).all():
            raise InvalidRequest("sounds", "samples must be finite")
        return samples.astype(np.float32)

    def spectrogram(self, samples: NDArray[np.float32]) -> Tensor:
        """float32 [mel bins, frames] of the longest sound: silence fills the rest."""
        made = self._extractor(samples, sampling_rate=self._rate, return_tensors="pt")
        features: Tensor = made["input_features"][0]
        return features

    def _read(self, path: Path) -> NDArray[np.float32]:
        try:
            found = read_wav(path)
        except (OSError, ValueError) as error:
            raise InvalidRequest("sounds", f"{path} is no WAV file that can be read: {error}") from error
        if found.rate != self._rate:
            raise InvalidRequest("sounds", f"{path} has {found.rate} Hz; it must have {self._rate}")
        mono: NDArray[np.float32] = found.samples.mean(axis=1, dtype=np.float32)
        return mono
