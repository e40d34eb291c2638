"""Frontends: tracing: what an export is told, asked twice, and watched for."""
