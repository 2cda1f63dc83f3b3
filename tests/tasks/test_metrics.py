"""Metrics against closed forms, and against themselves at other batch sizes."""

import math

import pytest
import torch

from cosformer.tasks.metrics import (
    Accuracy,
    AccuracyAndF1,
    BitsPerCharacter,
    Correlation,
    MaskedPerplexity,
    Matthews,
    TokenAccuracy,
    WordPerplexity,
)

# Predicted and true classes: 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
PREDICTED = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
LABELS = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]


def table(*columns):
    return torch.tensor(columns, dtype=torch.float64).T


def test_classes():
    rows = table(PREDICTED, LABELS)
    assert Accuracy().score(rows) == {"accuracy": 0.7}
    assert AccuracyAndF1().score(rows) == {"accuracy": 0.7, "f1": pytest.approx(6 / 9)}
    expected = (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6)
    assert Matthews().score(rows) == {"matthews": pytest.approx(expected), "accuracy": 0.7}


@pytest.mark.parametrize("constant", [0, 1])
def test_empty_margins(constant):
    rows = table([constant] * 4, [0, 1, 0, 1])
    assert Matthews().score(rows)["matthews"] == 0
    assert AccuracyAndF1().score(rows)["f1"] == pytest.approx(2 / 3 if constant else 0)
    assert Correlation().score(rows) == {"pearson": 0, "spearman": 0}


def test_correlation():
    x = [1.0, 2.0, 3.0, 4.0]
    line, parabola = [2 * v - 7 for v in x], [v * v for v in x]
    assert Correlation().score(table(x, line)) == pytest.approx({"pearson": 1, "spearman": 1})
    assert Correlation().score(table(x, [-v for v in line])) == pytest.approx({"pearson": -1, "spearman": -1})
    # Sums of products by hand: cov 25, variances 5 and 129.
    found = Correlation().score(table(x, parabola))
    assert found == pytest.approx({"pearson": 25 / math.sqrt(5 * 129), "spearman": 1})


def test_ties_share_their_mean_rank():
    found = Correlation().score(table([1, 2, 2, 3], [1, 2, 3, 4]))["spearman"]
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: cov 4.5, variances 4.5 and 5.
    assert found == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_a_regression_reads_its_one_logit():
    rows = Correlation().rows(torch.tensor([[0.5], [1.5]]), {"labels": torch.tensor([1.0, 2.0])})
    assert rows.tolist() == [[0.5, 1.0], [1.5, 2.0]]


def test_uniform_predictions_have_known_scores():
    labels = torch.randint(0, 8, (3, 11))
    labels[:, 4:6] = -100
    batch, logits = {"labels": labels}, torch.zeros(3, 11, 8)
    assert BitsPerCharacter().score(BitsPerCharacter().rows(logits, batch))["bits_per_character"] == (
        pytest.approx(3)
    )
    assert MaskedPerplexity().score(MaskedPerplexity().rows(logits, batch))["perplexity"] == pytest.approx(8)
    rows = WordPerplexity().rows(logits, batch)
    assert rows[:, 1].tolist() == [8, 8, 8], "the first token and two others are not predicted"
    assert WordPerplexity().score(rows)["perplexity"] == pytest.approx(8)


def test_perplexity_per_word_counts_words_and_not_pieces():
    words = torch.tensor([1, 0, 0, 1])  # tokens 0 and 3 begin a word
    metric = WordPerplexity(words)
    labels = torch.tensor([[0, 1, 2, 3, 0, 1, -100]])  # predicted: 1 2 3 0 1, of which two begin a word
    rows = metric.rows(torch.zeros(1, 7, 4), {"labels": labels})
    assert rows[0, 1:].tolist()[::2] == [5, 2]
    assert metric.score(rows)["perplexity"] == pytest.approx(math.exp(5 * math.log(4) / 2))


def test_a_causal_logit_is_about_the_next_token():
    labels = torch.tensor([[3, 1, 2, 0]])
    ahead = torch.nn.functional.one_hot(torch.tensor([[1, 2, 0, 3]]), 4) * 50.0
    assert TokenAccuracy().score(TokenAccuracy().rows(ahead, {"labels": labels}))["accuracy"] == 1
    found = BitsPerCharacter().score(BitsPerCharacter().rows(ahead, {"labels": labels}))
    assert found == {"bits_per_character": pytest.approx(0, abs=1e-6), "accuracy": 1}
    in_place = torch.nn.functional.one_hot(labels, 4) * 50.0
    found = MaskedPerplexity().score(MaskedPerplexity().rows(in_place, {"labels": labels}))
    assert found["perplexity"] == pytest.approx(1)


@pytest.mark.parametrize(
    "asked", [[1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], ids=["all", "between", "holes", "none"]
)
def test_bits_are_those_of_the_bytes_asked_for(asked):
    """Wherever they stand in the row: each is looked up by itself."""
    logits = torch.randn(1, 5, 256, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[7, 1, 2, 3, 4]])
    labels[0, 1:][torch.tensor(asked) == 0] = -100
    (found,) = BitsPerCharacter().rows(logits, {"labels": labels}).tolist()
    log = logits[0].double().log_softmax(-1)
    nats = sum(-float(log[t, t + 1]) for t in range(4) if asked[t])
    right = sum(int(logits[0, t].argmax()) == t + 1 for t in range(4) if asked[t])
    assert found == pytest.approx([nats, sum(asked), right], abs=1e-5)


def test_exact_rows():
    labels = torch.tensor([[-100, 1, 2], [-100, 1, 2], [-100, -100, -100]])
    guess = torch.tensor([[1, 2, 0], [1, 3, 0], [0, 0, 0]])
    rows = TokenAccuracy().rows(torch.nn.functional.one_hot(guess, 4).float(), {"labels": labels})
    assert TokenAccuracy().score(rows) == {"accuracy": 0.75, "exact": 0.5}


@pytest.mark.parametrize(
    "metric", [Accuracy(), AccuracyAndF1(), Matthews(), Correlation(), BitsPerCharacter(), WordPerplexity()]
)
def test_the_score_does_not_depend_on_batches(metric):
    tokens = isinstance(metric, BitsPerCharacter | WordPerplexity)
    shape = (20, 9, 4) if tokens else (20, 1 if isinstance(metric, Correlation) else 2)
    logits = torch.randn(shape)
    labels = torch.randint(0, 2, (20, 9) if tokens else (20,))
    scores = []
    for size in (1, 7, 20):
        parts = [
            metric.rows(logits[i : i + size], {"labels": labels[i : i + size]}) for i in range(0, 20, size)
        ]
        rows = torch.cat(parts)
        assert rows.dtype == torch.float64
        assert len(rows) == 20
        scores.append(metric.score(rows))
    assert next(iter(scores[0])) == metric.name
    assert scores[0] == scores[1] == scores[2]


def test_no_rows_have_no_score():
    with pytest.raises(ValueError, match="at least one sample"):
        Accuracy().score(torch.empty(0, 2))


@pytest.mark.parametrize("metric", [MaskedPerplexity, WordPerplexity])
def test_the_perplexity_of_a_model_that_has_diverged_is_infinite(metric):
    logits = torch.tensor([[[0.0, 1e4], [0.0, 1e4]]])
    rows = metric().rows(logits, {"labels": torch.zeros(1, 2, dtype=torch.int64)})
    assert metric().score(rows)["perplexity"] == math.inf
