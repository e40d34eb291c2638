"""The page of the server, built with Gradio."""
