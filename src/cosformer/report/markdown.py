"""The same document as Markdown, with its plots as files beside it."""

from cosformer.report.document import Document, Maps, Plot, Samples, Table, Text
from cosformer.terminal import markdown


def render(document: Document, plots_at: str) -> str:
    """`plots_at` is the folder of the plots, as seen from the file."""
    parts = [f"# {document.title}", document.lead]
    for section in document.sections:
        parts.append(f"## {section.title}")
        parts += [_block(block, plots_at) for block in section.blocks]
    return "\n\n".join(part for part in [*parts, document.footer] if part) + "\n"


def _block(block: Text | Table | Plot | Maps | Samples, plots_at: str) -> str:
    if isinstance(block, Text):
        return block.words
    if isinstance(block, Table):
        table = markdown([_cell(c) for c in block.header], [[_cell(c) for c in row] for row in block.rows])
        return f"{table}\n\n{block.caption}" if block.caption else table
    if isinstance(block, Plot):
        return f"![{block.title}]({plots_at}/{block.name}.svg)\n\n{block.caption}"
    if isinstance(block, Maps):
        return ""  # pictures of the page alone
    return "\n\n".join([block.caption, *(f"{s.name}:\n\n{_code(s.prompt + s.text)}" for s in block.samples)])


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def _code(text: str) -> str:
    fence = "```" if "```" not in text else "~~~~~~"
    return f"{fence}\n{text}\n{fence}"
