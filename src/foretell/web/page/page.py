"""Web: the page. It has five tabs, each with a form on the left and the answer on the right.

The first tab opens with an example that is answered at once. The address carries the question that was asked last, so
that it can be sent to somebody else.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from foretell.devices import all_devices
from foretell.web.admission.clients import CLIENT, UNKNOWN
from foretell.web.admission.queue import RequestQueue
from foretell.web.page import cards as show
from foretell.web.page import style
from foretell.web.page.links import field_values, link_script, read_link
from foretell.web.page.tabs import MOST_DEVICES, Tabs
from foretell.web.questions import EXAMPLE
from foretell.web.settings import Settings

DTYPES = ("fp32", "fp16", "bf16")
ENGINES = [("mean of the engines", "paged"), ("vLLM", "vllm"), ("SGLang", "sglang"), ("TensorRT-LLM", "trtllm")]
UPLOADED = ""  # the name of a field that holds an upload: no link carries it
_MAX_CONCURRENT = 32
_MAX_SESSIONS = 200  # Gradio stores the last answers of each in memory
_ANSWERED = "answered"  # what a tab gets that shall answer as soon as the page opens

Handler = Callable[..., Awaitable[tuple[str, str]]]


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
    ).set(
        # white text on the usual blue is hard to read
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
    )
    # Files never go through Gradio (see style.DROP_SCRIPT), hence the tiny max_file_size.
    gradio.mount_gradio_app(
        app, blocks, path="/", theme=theme, css=style.CSS, footer_links=[], run_history=False, ssr_mode=False,
        enable_monitoring=False, pwa=False, mcp_server=False, show_error=False, max_file_size="1kb",
    )  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The fields of a tab in the order in which its handler takes them, and what its answer goes to."""

    tab: str
    names: Sequence[str]
    fields: Sequence[Any]
    answer: Sequence[Any]
    opened: Any

    @property
    def defaults(self) -> list[Any]:
        """What the fields have when the page opens."""
        return [field.value for field in self.fields]


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
        address = gr.Textbox(visible=False)
        with gr.Tabs(overflow_behavior="wrap") as all_tabs:
            forms = [
                make(gr, tabs, names)
                for make in (_predict_tab, _compare_tab, _share_tab, _advise_tab, _language_model_tab)
            ]
        gr.HTML(
            f"<div class='ft-foot'>Uploads up to {settings.max_upload_mib:g} MiB. They are read in a separate process, "
            "never executed, and deleted afterwards. The API: <a href='openapi.json'>openapi.json</a>.</div>",
            apply_default_css=False,
        )
        _open_link(gr, blocks, address, all_tabs, forms)
    blocks.state_session_capacity = _MAX_SESSIONS
    blocks.queue(default_concurrency_limit=_MAX_CONCURRENT, max_size=settings.waiting, api_open=False)
    return blocks


def _predict_tab(gr: Any, tabs: Tabs, names: list[tuple[str, str]]) -> Form:
    with gr.Tab("Predict", id="predict"), gr.Row():
        with gr.Column(scale=1, min_width=300):
            model = _model(gr, "Model", EXAMPLE)
            devices = gr.Dropdown(
                names, value=["h200", "a100-sxm-80gb", "l4"], multiselect=True, max_choices=MOST_DEVICES,
                label="Devices",
            )  # fmt: skip
            run_options = _run_options(gr, batch_size=8, dtype="fp16")
            with gr.Accordion("More", open=False):
                inputs = gr.Textbox(label="Input shape", placeholder="3x224x224, without the batch")
                slice_ = gr.Textbox(
                    label="Slice", placeholder="mps:30", info="A part of the GPU: mps:30 (percent), mig:1g.18gb, sms:66"
                )
            go = gr.Button("Predict", variant="primary")
        with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
            answer, opened = _answer(gr, "Choose a model and a device, then press Predict.")
            with gr.Row(elem_classes="ft-save"):
                save = gr.Button("Download JSON", size="sm")
                report = gr.Button("Download report", size="sm")
            note, report_html = gr.HTML(apply_default_css=False), gr.Textbox(visible=False)
    form = Form(
        "predict", ["model", UPLOADED, "devices", "batch_size", "dtype", "mode", "input", "slice"],
        [*model, devices, *run_options, inputs, slice_], answer, opened,
    )  # fmt: skip
    _connect(go, tabs.predict, form, "Reading the model, then predicting it on each device and batch size")
    _download(save.click, answer[1], "prediction.json")
    making = report.click(
        _for_client(tabs.report, "Writing the report: it also looks for places to run the model", swapped=True),
        list(form.fields), [report_html, note], api_visibility="private", show_progress="hidden",
    )  # fmt: skip
    _download(making.then, report_html, "report.html")
    return form


def _compare_tab(gr: Any, tabs: Tabs, names: list[tuple[str, str]]) -> Form:
    with gr.Tab("Compare", id="compare"), gr.Row():
        with gr.Column(scale=1, min_width=300):
            first, second = _model(gr, "First model"), _model(gr, "Second model")
            device = gr.Dropdown(names, value="h200", label="Device")
            run_options = _run_options(gr)
            go = gr.Button("Compare", variant="primary")
        with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
            answer, opened = _answer(gr, "Choose two models, then press Compare.")
            save = gr.Button("Download JSON", size="sm", elem_classes="ft-save")
    form = Form(
        "compare", ["model", UPLOADED, "other", UPLOADED, "device", "batch_size", "dtype", "mode"],
        [*first, *second, device, *run_options], answer, opened,
    )  # fmt: skip
    _connect(go, tabs.compare, form, "Reading both models")
    _download(save.click, answer[1], "comparison.json")
    return form


def _share_tab(gr: Any, tabs: Tabs, names: list[tuple[str, str]]) -> Form:
    with gr.Tab("Share a GPU", id="share"), gr.Row():
        with gr.Column(scale=1, min_width=300):
            first, second = _model(gr, "First model"), _model(gr, "Second model")
            device = gr.Dropdown(names, value="h200", label="Device")
            run_options = _run_options(gr, dtype="fp16")
            method = gr.Radio(
                [("MPS: kernels of both side by side", "mps"), ("time-slicing: one after the other", "time-slicing")],
                value="mps", label="How they share it",
            )  # fmt: skip
            go = gr.Button("Share", variant="primary")
        with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
            answer, opened = _answer(
                gr, "Choose two models that run on one GPU at the same time, then press Share: how much slower is each?"
            )
            save = gr.Button("Download JSON", size="sm", elem_classes="ft-save")
    form = Form(
        "share", ["model", UPLOADED, "other", UPLOADED, "device", "batch_size", "dtype", "mode", "method"],
        [*first, *second, device, *run_options, method], answer, opened,
    )  # fmt: skip
    _connect(go, tabs.share, form, "Reading both models, then predicting each alone and together")
    _download(save.click, answer[1], "sharing.json")
    return form


def _advise_tab(gr: Any, tabs: Tabs, names: list[tuple[str, str]]) -> Form:
    with gr.Tab("Advise", id="advise"), gr.Row():
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
                mig = gr.Checkbox(value=True, label="Try slices of GPUs too (MIG)")
                shared = gr.Checkbox(value=False, label="Try copies that share a GPU too")
            go = gr.Button("Advise", variant="primary")
        with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
            answer, opened = _answer(gr, "Choose a model and its requirements, then press Advise.")
            save = gr.Button("Download JSON", size="sm", elem_classes="ft-save")
    form = Form(
        "advise", ["model", UPLOADED, "dtype", "slo_ms", "rate", "budget", "by", "market", "devices", "mig", "shared"],
        [*model, dtype, slo_ms, rate, budget, objective, market, devices, mig, shared], answer, opened,
    )  # fmt: skip
    _connect(go, tabs.advise, form, "Reading the model, then predicting it on every GPU that somebody rents out")
    _download(save.click, answer[1], "advice.json")
    return form


def _language_model_tab(gr: Any, tabs: Tabs, names: list[tuple[str, str]]) -> Form:
    with gr.Tab("Language models", id="llm"), gr.Row():
        with gr.Column(scale=1, min_width=300):
            model = gr.Textbox(
                value="hf:meta-llama/Llama-3.1-8B", label="Model", placeholder="hf:meta-llama/Llama-3.1-8B",
                info="hf: and the name on the Hugging Face hub",
            )  # fmt: skip
            device = gr.Dropdown(names, value="h200", label="Device")
            with gr.Row():
                tokens_in = gr.Number(value=1024, precision=0, minimum=1, label="Tokens in", min_width=120)
                tokens_out = gr.Number(value=256, precision=0, minimum=1, label="Tokens out", min_width=120)
                concurrency = gr.Number(value=8, precision=0, minimum=1, label="Requests at a time", min_width=120)
            with gr.Accordion("More", open=False):
                gpus = gr.Textbox(label="GPUs", placeholder="as few as hold it")
                weights = gr.Dropdown(
                    [("as published", ""), "fp8", "int8", "int4"], value="", label="Weights in"
                )  # fmt: skip
                engine = gr.Dropdown(ENGINES, value="paged", label="Engine")
            go = gr.Button("Serve", variant="primary")
            with gr.Row():
                ttft = gr.Textbox(label="First token, ms", placeholder="no limit", min_width=120)
                tpot = gr.Textbox(label="A token, ms", placeholder="no limit", min_width=120)
                rate = gr.Textbox(label="Requests a second", placeholder="one copy", min_width=120)
            where = gr.Button("Where to serve it")
        with gr.Column(scale=3, min_width=320, elem_classes="ft-answer"):
            answer, opened = _answer(
                gr,
                "Choose a language model, then press Serve: does it fit, how fast, at what cost? Or give limits, and "
                "ask where to serve it.",
            )
            save = gr.Button("Download JSON", size="sm", elem_classes="ft-save")
    form = Form(
        "llm", ["model", "device", "input_tokens", "output_tokens", "concurrency", "gpus", "weights", "engine"],
        [model, device, tokens_in, tokens_out, concurrency, gpus, weights, engine], answer, opened,
    )  # fmt: skip
    _connect(go, tabs.serve, form, "Reading the configuration of the model")
    where.click(
        _for_client(tabs.place, "Trying every GPU that somebody rents out, in three precisions"),
        [model, tokens_in, tokens_out, engine, ttft, tpot, rate], answer,
        api_visibility="private", show_progress="hidden",
    )  # fmt: skip
    _download(save.click, answer[1], "serving.json")
    return form


def _open_link(gr: Any, blocks: Any, address: Any, all_tabs: Any, forms: Sequence[Form]) -> None:
    """When the page opens, fill the form that the address names and answer it; without one, answer the example."""

    def fill(link: str) -> list[Any]:
        tab, given = read_link(link or "")
        chosen = next((form for form in forms if form.tab == tab), forms[0])
        updates: list[Any] = [gr.Tabs(selected=chosen.tab)]
        for form in forms:
            if form is not chosen:
                updates += [gr.skip()] * (len(form.fields) + 1)
                continue
            is_example = form is forms[0] and not given
            values = form.defaults if is_example else field_values(form.names, form.defaults, given)
            updates += [*values, _ANSWERED if is_example or given else ""]
        return updates

    outputs = [all_tabs, *(part for form in forms for part in (*form.fields, form.opened))]
    blocks.load(
        fill, [address], outputs, js="() => [window.location.search]", api_visibility="private",
        show_progress="hidden",
    )  # fmt: skip


def _model(gr: Any, label: str, value: str = "") -> list[Any]:
    """A field for the name of a model, and an area to drop a file. Whichever is used later clears the other."""
    with gr.Group():
        spec = gr.Textbox(value=value, label=label, placeholder="timm:resnet50, hf:bert-base-uncased")
        dropzone = gr.HTML(
            "", html_template=style.DROP_TEMPLATE, js_on_load=style.DROP_SCRIPT, name="", note="",
            apply_default_css=False, elem_classes="ft-dropbox",
        )  # fmt: skip
    spec.input(None, [dropzone], [dropzone], js=style.FORGET_SCRIPT, api_visibility="private")
    dropzone.upload(None, None, [spec], js="() => ''", api_visibility="private")
    return [spec, dropzone]


def _run_options(gr: Any, batch_size: int = 1, dtype: str = "fp32") -> list[Any]:
    """Batch size, precision and mode."""
    with gr.Row():
        size = gr.Number(value=batch_size, precision=0, minimum=1, label="Batch size", min_width=120)
        precision = gr.Dropdown(list(DTYPES), value=dtype, label="Precision", min_width=120)
    return [size, precision, gr.Radio(["inference", "training"], value="inference", label="Mode")]


def _answer(gr: Any, empty: str) -> tuple[list[Any], Any]:
    """A component for the answer, a hidden one for its JSON, and one that is set when a link asks a question."""
    answer = [
        gr.HTML(show.show_nothing(empty), apply_default_css=False, elem_classes="ft-result"),
        gr.Textbox(visible=False),
    ]
    return answer, gr.Textbox(visible=False)


def _connect(button: Any, handler: Handler, form: Form, progress: str) -> None:
    """Answer when the button is pressed, and when a link opened the tab."""
    answering = _for_client(handler, progress)
    button.click(
        answering, list(form.fields), list(form.answer), js=link_script(form.tab, form.names),
        api_visibility="private", show_progress="hidden",
    )  # fmt: skip
    form.opened.change(
        answering, list(form.fields), list(form.answer), api_visibility="private", show_progress="hidden"
    )


def _for_client(handler: Handler, progress: str = "", *, swapped: bool = False) -> Callable[..., Any]:
    """A handler that knows whose request it answers (Gradio runs it in a task of its own), and shows its progress.

    ``swapped`` handlers return what is shown as their second value.
    """
    import gradio

    async def handle(request: Any, *values: Any) -> AsyncIterator[tuple[str, str]]:
        CLIENT.set(request.client.host if request.client else UNKNOWN)
        work = asyncio.ensure_future(handler(*values))
        try:
            seconds = 0
            while not work.done():
                text = show.show_progress(progress, seconds)
                yield ("", text) if swapped else (text, "")
                await asyncio.wait([work], timeout=1)
                seconds += 1
            yield work.result()
        finally:
            work.cancel()  # the visitor left

    handle.__annotations__["request"] = gradio.Request  # by this, Gradio knows what to pass
    return handle


def _download(event: Callable[..., Any], text: Any, name: str) -> None:
    """Let the browser save a text that it already has; the server writes no file."""
    event(None, [text], None, js=style.download_script(name), api_visibility="private")
