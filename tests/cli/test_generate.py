"""What is streamed is what `generate` gives, however long the context and wherever characters are cut."""

import pytest
import torch

from cosformer.cli import generate, main
from cosformer.models import CosformerForCausalLM, byte_tokenizer


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_context_and_prompt_are_read_as_one(chunk, saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK", chunk)
    context = tmp_path / "context.txt"
    text = "Wer reitet so spät\r\ndurch Nacht und Wind?\n"  # line ends of either kind stay as they are
    context.write_bytes(text.encode())
    arguments = [str(saved), "--context", str(context), "--prompt", "Es ist", "--tokens", "20", "--greedy"]
    assert main(["generate", *arguments]) == 0
    tokenizer, model = byte_tokenizer(), CosformerForCausalLM.from_pretrained(saved).eval()
    ids = tokenizer(text + "Es ist", return_tensors="pt")["input_ids"]
    whole = model.generate(ids, max_new_tokens=20, do_sample=False, use_cache=False)
    assert len(whole[0]) > ids.shape[1] + 5
    said = capsys.readouterr()
    assert said.out == "Es ist" + tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True) + "\n"


def test_the_same_seed_gives_the_same_text(saved, capsys):
    texts = []
    for seed in (1, 1, 2):
        main(["generate", str(saved), "--prompt", "a", "--tokens", "30", "--seed", str(seed)])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_nothing_given_starts_from_the_first_token(saved, capsys):
    assert main(["generate", str(saved), "--tokens", "5", "--greedy"]) == 0
    assert capsys.readouterr().out.strip()


def test_characters_come_whole():
    text, said = "aé€😀z", []
    streamer = generate.TokenStreamer(byte_tokenizer(), said.append)
    streamer.put(torch.tensor([[1, 2, 3]]))  # the prompt is not said again
    for byte in text.encode():
        streamer.put(torch.tensor([byte]))
    streamer.end()
    assert "".join(said) == text
    assert [s for s in said if s] == list(text)


def test_what_is_no_text_does_not_wait_for_ever():
    said = []
    streamer = generate.TokenStreamer(byte_tokenizer(), said.append)
    streamer.put(torch.tensor([[0]]))
    for _ in range(12):
        streamer.put(torch.tensor([0xFF]))
    assert said, "bytes that never become a character are handed on"


def test_ctrl_c_says_how_far_it_came(saved, capsys, monkeypatch):
    put = generate.TokenStreamer.put

    def stop(self, ids):
        put(self, ids)
        if self.tokens == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(generate.TokenStreamer, "put", stop)
    assert main(["generate", str(saved), "--prompt", "a", "--tokens", "30"]) == 130
    assert "stopped after 4 tokens" in capsys.readouterr().err.lower()
