"""Web: the page. It has three tabs, each with a form on the left and the answer on the right."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI

from foretell.devices import all_devices
from foretell.web.admission.clients import CLIENT, UNKNOWN
from foretell.web.admission.queue import RequestQueue
from foretell.web.page import cards as show
from foretell.web.page import style
from foretell.web.page.tabs import MOST_DEVICES, Tabs
from foretell.web.settings import Settings

DTYPES = ("fp32", "fp16", "bf16")
_MAX_CONCURRENT = 32
_MAX_SESSIONS = 200  # Gradio stores the last answers of each in memory


def add_page(app: FastAPI, queue: RequestQueue, settings: Settings) -> None:
    """Put the page at the root of the application."""
    # Set before the import, because Gradio reads settings while it is loaded.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(queue.uploads.folder / "page")
    import gradio

    blocks = make_page(Tabs(queue), settings)
    theme = gradio.themes.Default(
        primary_hue="blue",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],  # no font is loaded from another host
        font_mono=["ui-monospace", "Menlo", "monospace"],
    )
    # Files never go through Gradio (see style.DROP_SCRIPT), hence the tiny max_file_size.
    gradio.mount_gradio_app(
        app, blocks, path="/", theme=theme, css=style.CSS, footer_links=[], run_history=False, ssr_mode=False,
        enable_monitoring=False, pwa=False, mcp_server=False, show_error=False, max_file_size="1kb",
    )  # fmt: skip


def make_page(tabs: Tabs, settings: Settings) -> Any:
    """The components of the page, and what its buttons do."""
    import gradio as gr

    names = [(entry.name, entry.id) for entry in all_devices()]
    with gr.Blocks(title="foretell", analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(
            "<div class='ft-title'><h1>foretell</h1><span>how a deep-learning model will run, before anyone runs it"
            "</span></div>",
            apply_default_css=False,
        )
        with gr.Tabs():
            with gr.Tab("Predict"), gr.Row():
                with gr.Column(scale=1, min_width=300):
                    model = _model(gr, "Model")
                    devices = gr.Dropdown(
                        names, value=["h200"], multiselect=True, max_choices=MOST_DEVICES, label="Devices"
                    )
                    run_options = _run_options(gr)
                    with gr.Accordion("More", open=False):
                        inputs = gr.Textbox(label="Input shape", placeholder="3x224x224, without the batch")
                        slice_ = gr.Textbox(label="Slice", placeholder="mps:30, mig:1g.18gb, sms:66")
                    go = gr.Button("Predict", variant="primary")
                with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
                    result, text = _result(gr, "Choose a model and a device, then press Predict.")
                    with gr.Row(elem_classes="ft-save"):
                        save = gr.Button("Download JSON", size="sm")
                        report = gr.Button("Download report", size="sm")
                    note, report_html = gr.HTML(apply_default_css=False), gr.Textbox(visible=False)
            fields = [*model, devices, *run_options, inputs, slice_]
            _connect(go, tabs.predict, fields, [result, text])
            _download(save.click, text, "prediction.json")
            _download(_connect(report, tabs.report, fields, [report_html, note]).then, report_html, "report.html")

            with gr.Tab("Compare"), gr.Row():
                with gr.Column(scale=1, min_width=300):
                    first, second = _model(gr, "First model"), _model(gr, "Second model")
                    device = gr.Dropdown(names, value="h200", label="Device")
                    run_options = _run_options(gr)
                    go = gr.Button("Compare", variant="primary")
                    share = gr.Button("Share one GPU")
                with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
                    result, text = _result(
                        gr, "Choose two models, then press Compare, or Share one GPU to run both at the same time."
                    )
                    save = gr.Button("Download JSON", size="sm", elem_classes="ft-save")
            _connect(go, tabs.compare, [*first, *second, device, *run_options], [result, text])
            _connect(share, tabs.share, [*first, *second, device, *run_options], [result, text])
            _download(save.click, text, "comparison.json")

            with gr.Tab("Advise"), gr.Row():
                with gr.Column(scale=1, min_width=300):
                    model = _model(gr, "Model")
                    dtype = gr.Dropdown(list(DTYPES), value="fp16", label="Precision")
                    with gr.Row():
                        slo_ms = gr.Textbox(label="Longest latency, ms", placeholder="any", min_width=120)
                        rate = gr.Textbox(label="Requests a second", placeholder="any", min_width=120)
                        budget = gr.Textbox(label="Budget, $/h", placeholder="any", min_width=120)
                    objective = gr.Radio([("dollars", "usd"), "energy", "carbon"], value="usd", label="Rank by")
                    with gr.Accordion("More", open=False):
                        market = gr.Radio(["on-demand", "spot"], value="on-demand", label="Market")
                        devices = gr.Dropdown(names, value=[], multiselect=True, label="Devices (none: all)")
                        mig = gr.Checkbox(value=True, label="Try MIG slices too")
                        shared = gr.Checkbox(value=False, label="Try copies that share a GPU too")
                    go = gr.Button("Advise", variant="primary")
                with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
                    result, text = _result(gr, "Choose a model and its requirements, then press Advise.")
                    save = gr.Button("Download JSON", size="sm", elem_classes="ft-save")
            fields = [*model, dtype, slo_ms, rate, budget, objective, market, devices, mig, shared]
            _connect(go, tabs.advise, fields, [result, text])
            _download(save.click, text, "advice.json")
        gr.HTML(
            f"<div class='ft-foot'>Uploads up to {settings.max_upload_mib:g} MiB. They are read in a separate process, "
            "never executed, and deleted afterwards. The API: <a href='openapi.json'>openapi.json</a>.</div>",
            apply_default_css=False,
        )
    blocks.state_session_capacity = _MAX_SESSIONS
    blocks.queue(default_concurrency_limit=_MAX_CONCURRENT, max_size=settings.waiting, api_open=False)
    return blocks


def _model(gr: Any, label: str) -> list[Any]:
    """A field for the name of a model, and an area to drop a file."""
    with gr.Group():
        spec = gr.Textbox(label=label, placeholder="timm:resnet50")
        dropzone = gr.HTML(
            "", html_template=style.DROP_TEMPLATE, js_on_load=style.DROP_SCRIPT, name="", note="",
            apply_default_css=False, elem_classes="ft-dropbox",
        )  # fmt: skip
    return [spec, dropzone]


def _run_options(gr: Any) -> list[Any]:
    """Batch size, precision and mode."""
    with gr.Row():
        batch_size = gr.Number(value=1, precision=0, minimum=1, label="Batch size", min_width=120)
        dtype = gr.Dropdown(list(DTYPES), value="fp32", label="Precision", min_width=120)
    return [batch_size, dtype, gr.Radio(["inference", "training"], value="inference", label="Mode")]


def _result(gr: Any, empty: str) -> list[Any]:
    """A component for the answer, and a hidden one for its JSON."""
    return [
        gr.HTML(show.show_nothing(empty), apply_default_css=False, elem_classes="ft-result"),
        gr.Textbox(visible=False),
    ]


def _connect(button: Any, handler: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return button.click(
        _for_client(handler), list(inputs), list(outputs), api_visibility="private", show_progress="minimal"
    )


def _for_client(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that knows whose request it answers: Gradio runs it in a task of its own."""
    import gradio

    async def handle(request: Any, *values: Any) -> Any:
        CLIENT.set(request.client.host if request.client else UNKNOWN)
        return await handler(*values)

    handle.__annotations__["request"] = gradio.Request  # by this, Gradio knows what to pass
    return handle


def _download(event: Callable[..., Any], text: Any, name: str) -> None:
    """Let the browser save a text that it already has; the server writes no file."""
    event(None, [text], None, js=style.download_script(name), api_visibility="private")
