"""A Transformers example: a tiny model made here, trained with report_to="wandb"."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(42)
torch.set_num_threads(1)


class Words(Dataset):
    def __init__(self, count):
        self.rows = torch.randint(0, 50, (count, 8), generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


def main():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir="out",
        run_name="tiny-gpt2",
        report_to="wandb",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        logging_steps=2,
        eval_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=42,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Words(24), eval_dataset=Words(8))
    trainer.train()
    trainer.evaluate()


if __name__ == "__main__":
    main()
