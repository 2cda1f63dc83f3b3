"""The tasks of GLUE: one class each, with its columns, its counts and its official metric."""

from dataclasses import dataclass, replace
from typing import ClassVar

from cosformer.ops.checks import flag
from cosformer.tasks.glue.finetuning import Part
from cosformer.tasks.glue.formats import Format, Glue
from cosformer.tasks.metrics import Accuracy, AccuracyAndF1, Correlation, Matthews
from cosformer.tasks.registry import register

_BINARY = {"0": 0, "1": 1}
_ENTAILED = {"entailment": 0, "not_entailment": 1}


@register("sst2")
@dataclass(frozen=True)
class Sst2(Glue):
    """SST-2 (Socher et al., 2013): is a phrase of a film review positive? Accuracy.

        text        that loves its characters and communicates something rather beautiful about human nature
        labels      1

    Provenance: `glue/SST-2/{train,dev}.tsv`, 67,349 / 872 rows, columns sentence, label. Many
    training rows are phrases of the same sentence, so that valid is easier than test.
    """

    title = "SST-2"
    metric = Accuracy()
    num_labels = 2
    counts: ClassVar = {"train": (67_349,), "test": (872,)}
    format: ClassVar = Format("SST-2", ("sentence", "label"), (0,), 1, _BINARY)


@register("cola")
@dataclass(frozen=True)
class Cola(Glue):
    """CoLA (Warstadt et al., 2018, arXiv:1805.12471): is a sentence grammatical? Matthews' correlation.

        text        The more we study verbs, the crazier they get.
        labels      1

    Provenance: `glue/CoLA/{train,dev}.tsv`, 8,551 / 1,043 rows, four columns without names: source, label,
    the author's own mark, sentence.
    """

    title = "CoLA"
    metric = Matthews()
    num_labels = 2
    counts: ClassVar = {"train": (8_551,), "test": (1_043,)}
    format: ClassVar = Format("CoLA", 4, (3,), 1, _BINARY)


@register("mrpc")
@dataclass(frozen=True)
class Mrpc(Glue):
    """MRPC (Dolan and Brockett, 2005): do two sentences of the news say the same? Accuracy and F1.

        text        Amrozi accused his brother , whom he called " the witness " , of ...
        text        Referring to him as only " the witness " , Amrozi accused his brother of ...
        labels      1

    Provenance: `glue/MRPC/{train,dev}.tsv`, 3,668 / 408 rows, columns Quality, #1 ID, #2 ID, #1 String, #2
    String, behind a byte-order mark. Copies whose training file lacks one pair (3,667 rows) are taken too.
    """

    title = "MRPC"
    metric = AccuracyAndF1()
    num_labels = 2
    texts: ClassVar = 2
    counts: ClassVar = {"train": (3_668, 3_667), "test": (408,)}
    format: ClassVar = Format(
        "MRPC", ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), (3, 4), 0, _BINARY
    )


@register("rte")
@dataclass(frozen=True)
class Rte(Glue):
    """RTE (Dagan et al., 2006, and its successors): does the second sentence follow from the first? Accuracy.

        text        No Weapons of Mass Destruction Found in Iraq Yet.
        text        Weapons of Mass Destruction Found in Iraq.
        labels      1                                                     (0: entailment, 1: not)

    Provenance: `glue/RTE/{train,dev}.tsv`, 2,490 / 277 rows, columns index, sentence1, sentence2, label.
    """

    title = "RTE"
    metric = Accuracy()
    num_labels = 2
    texts: ClassVar = 2
    counts: ClassVar = {"train": (2_490,), "test": (277,)}
    format: ClassVar = Format("RTE", ("index", "sentence1", "sentence2", "label"), (1, 2), 3, _ENTAILED)


@register("stsb")
@dataclass(frozen=True)
class Stsb(Glue):
    """STS-B (Cer et al., 2017, arXiv:1708.00055): how much do two sentences say the same, from 0 to 5? A
    regression; Pearson's and Spearman's correlation.

        text        A plane is taking off.
        text        An air plane is taking off.
        labels      5.0

    Provenance: `glue/STS-B/{train,dev}.tsv`, 5,749 / 1,500 rows, ten columns, of which sentence1, sentence2
    and score are read.
    """

    title = "STS-B"
    metric = Correlation()
    num_labels = 1
    texts: ClassVar = 2
    counts: ClassVar = {"train": (5_749,), "test": (1_500,)}
    format: ClassVar = Format(
        "STS-B",
        (
            "index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2",
            "score",
        ),
        (7, 8),
        9,
        None,
    )  # fmt: skip


@register("qnli")
@dataclass(frozen=True)
class Qnli(Glue):
    """QNLI (from SQuAD, Rajpurkar et al., 2016): does the sentence answer the question? Accuracy.

        text        When did the third Digimon series begin?
        text        Unlike the two seasons before it and most of the seasons that followed, ...
        labels      1                                                     (0: entailment, 1: not)

    Provenance: `glue/QNLI/{train,dev}.tsv` (version 2), 104,743 / 5,463 rows, columns index, question,
    sentence, label.
    """

    title = "QNLI"
    metric = Accuracy()
    num_labels = 2
    texts: ClassVar = 2
    counts: ClassVar = {"train": (104_743,), "test": (5_463,)}
    format: ClassVar = Format("QNLI", ("index", "question", "sentence", "label"), (1, 2), 3, _ENTAILED)


@register("qqp")
@dataclass(frozen=True)
class Qqp(Glue):
    """QQP (Iyer et al., 2017): do two questions of Quora ask the same? Accuracy and F1.

        text        How is the life of a math student?
        text        Which level of preparation is enough for the exam jlpt5?
        labels      0

    Provenance: `glue/QQP/{train,dev}.tsv`, 363,846 / 40,430 rows, columns id, qid1, qid2, question1,
    question2, is_duplicate. A few rows of the official training file are torn in two; those halves are left
    out.
    """

    title = "QQP"
    metric = AccuracyAndF1()
    num_labels = 2
    texts: ClassVar = 2
    counts: ClassVar = {"train": (363_846,), "test": (40_430,)}
    format: ClassVar = Format(
        "QQP", ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), (3, 4), 5, _BINARY, broken=10
    )


_MNLI = (
    "index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse",
    "sentence1_parse", "sentence2_parse", "sentence1", "sentence2",
)  # fmt: skip


@register("mnli")
@dataclass(frozen=True)
class Mnli(Glue):
    """MNLI (Williams et al., 2018, arXiv:1704.05426): the second sentence follows from the first (0), has
    nothing to do with it (1), or contradicts it (2). Accuracy.

        text        Conceptually cream skimming has two basic dimensions - product and geography.
        text        Product and geography are what make cream skimming work.
        labels      1

    Provenance: `glue/MNLI/{train,dev_matched,dev_mismatched}.tsv`, 392,702 / 9,815 / 9,832 rows; 12 columns
    in train, 16 in the others, of which sentence1, sentence2 and gold_label are read.

    Args:
        mismatched: test on sentences of other genres than those of train.
    """

    mismatched: bool = False

    title = "MNLI"
    metric = Accuracy()
    num_labels = 3
    texts: ClassVar = 2
    format: ClassVar = Format(
        "MNLI",
        (*_MNLI, "label1", "gold_label"),
        (8, 9),
        11,
        {"entailment": 0, "neutral": 1, "contradiction": 2},
        test="dev_matched.tsv",
        test_columns=(*_MNLI, "label1", "label2", "label3", "label4", "label5", "gold_label"),
        test_label=15,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("mismatched", self.mismatched)

    def count(self, part: Part) -> tuple[int, ...]:
        return (392_702,) if part == "train" else (9_832 if self.mismatched else 9_815,)

    @property
    def _format(self) -> Format:
        return replace(self.format, test="dev_mismatched.tsv") if self.mismatched else self.format
