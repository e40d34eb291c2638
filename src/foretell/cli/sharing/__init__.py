"""Commands about models that share GPUs."""
