"""What a request passes before it is answered: middleware, queue, uploads, worker processes."""
