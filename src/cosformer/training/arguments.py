"""What `transformers.Trainer` needs to know of a run."""

from pathlib import Path

from transformers import TrainingArguments

from cosformer.training.run import Run


def arguments(run: Run, folder: Path, device: str) -> TrainingArguments:
    """All that it would log, save, shuffle or skip is turned off: `RunTrainer` does that."""
    made = TrainingArguments(
        output_dir=str(folder),
        max_steps=run.steps,
        gradient_accumulation_steps=run.accumulation,
        max_grad_norm=run.clip or 0.0,
        seed=run.seed,
        use_cpu=device == "cpu",
        torch_compile=run.compile,
        torch_compile_backend=run.compile_backend if run.compile else None,
        gradient_checkpointing=run.gradient_checkpointing,
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        logging_nan_inf_filter=False,
        ignore_data_skip=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
    )
    made._n_gpu = min(made.n_gpu, 1)  # or it spreads batches over all GPUs by DataParallel
    return made
