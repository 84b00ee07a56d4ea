"""Joined pairs of texts against the tokenizers library, for every kind of post-processor."""

import pytest
from llm_tokenizer import PairTemplate, TokenizerFileError
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = {word: index for index, word in enumerate(["[CLS]", "[SEP]", "<s>", "</s>", "a", "b", "c", "d"])}
BERT = processors.TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
    special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
)
PROCESSORS = {
    "template": BERT,
    "bert": processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0)),
    "roberta": processors.RobertaProcessing(("</s>", 3), ("<s>", 2)),
    "sequence": processors.Sequence([processors.ByteLevel(), BERT]),
    "byte level": processors.ByteLevel(),
    "none": None,
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_pairs_equal_the_library(kind, tmp_path):
    library = Tokenizer(models.WordLevel(WORDS, unk_token="d"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    if PROCESSORS[kind] is not None:
        library.post_processor = PROCESSORS[kind]
    library.save(str(tmp_path / "tokenizer.json"))
    expected = library.encode("a b c", "d a")
    plain = [library.encode(text, add_special_tokens=False).ids for text in ("a b c", "d a")]

    template = PairTemplate.from_file(tmp_path)
    ids, types = template.join(*plain)

    assert (ids, types) == (expected.ids, expected.type_ids)
    assert template.num_added == len(ids) - sum(map(len, plain))


def test_a_malformed_processor_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"post_processor": {"type": "TemplateProcessing"}}')
    with pytest.raises(TokenizerFileError, match="post_processor"):
        PairTemplate.from_file(tmp_path)


def test_without_a_file_the_texts_stand_one_after_the_other(tmp_path):
    assert PairTemplate.from_file(tmp_path).join([1], [2, 3]) == ([1, 2, 3], [0, 1, 1])
