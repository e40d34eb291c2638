"""What every request goes through: middleware, uploads, the queue and the worker processes."""
