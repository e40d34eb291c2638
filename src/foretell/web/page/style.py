"""Web: how the page looks, and the scripts it runs in the browser."""

CSS = """
.gradio-container { --ft-quiet: color-mix(in srgb, var(--body-text-color) 70%, var(--body-background-fill)); }
.ft svg.chart { display: block; width: 100%; height: auto; }
.ft svg.chart .ch-f-paper { fill: transparent; }
.gradio-container { max-width: 1360px !important; margin: 0 auto !important; }
.ft-answer:has(.ft-empty) .ft-save, .ft-answer:has(.ft-result .ft-busy) .ft-save,
.ft-answer:has(.ft-result .ft-problem) .ft-save { display: none; }
.ft-dropbox { background: var(--block-background-fill); }
.ft-dropbox, .ft-result, .ft-result > div:not(.ft) { padding: 0 !important; }
.gradio-container button[role="tab"][aria-selected="true"] { color: var(--body-text-color); }
.gradio-container .info-text { color: var(--ft-quiet); }
.ft-title { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem .9rem; padding: .4rem 0; }
.ft-title h1 { font-size: 1.7rem; font-weight: 700; margin: 0; }
.ft-title span { color: var(--ft-quiet); }
.ft { color: var(--body-text-color); font-size: .95rem; line-height: 1.45; }
.ft h3 { font-size: 1.2rem; font-weight: 650; margin: .1rem 0; overflow-wrap: anywhere; }
.ft-line { color: var(--ft-quiet); margin: .15rem 0 .7rem; overflow-wrap: anywhere; }
.ft-cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.4rem, 1fr)); gap: .6rem; margin: .6rem 0; }
.ft-card, .ft-charts > div { background: var(--background-fill-primary); border-radius: 10px;
  border: 1px solid var(--border-color-primary); }
.ft-card { display: flex; flex-direction: column; padding: .6rem; }
.ft-card span, .ft-card i { color: var(--ft-quiet); font-size: .82rem; font-style: normal; }
.ft-card b { font-size: 1.45rem; font-weight: 650; overflow-wrap: anywhere; }
.ft-card small { font-size: .78rem; font-weight: 400; white-space: nowrap; }
.ft-scroll { overflow-x: auto; contain: inline-size; margin: .7rem 0; border-radius: 10px;
  border: 1px solid var(--border-color-primary);
  background: var(--background-fill-primary); }
.ft table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: 0; }
.ft th, .ft td { padding: .4rem .7rem; text-align: right; border: 0; vertical-align: top; }
.ft th { color: var(--ft-quiet); font-weight: 500; font-size: .82rem; white-space: nowrap; max-width: 15rem;
  overflow: hidden; text-overflow: ellipsis;
  border-bottom: 1px solid var(--border-color-primary); }
.ft .ft-text { text-align: left; min-width: 8rem; }
.ft tr + tr td { border-top: 1px solid var(--border-color-primary); }
.ft td small { display: block; color: var(--ft-quiet); font-size: .78rem; white-space: nowrap; }
@media (max-width: 40rem) {
  .ft table, .ft tbody { display: block; }
  .ft thead { display: none; }
  .ft tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); gap: .2rem 1rem;
    padding: .6rem .8rem; }
  .ft tr + tr { border-top: 1px solid var(--border-color-primary); }
  .ft td, .ft tr + tr td { display: block; padding: 0 !important; border: 0; text-align: left; }
  .ft td.ft-text { grid-column: 1 / -1; min-width: 0; overflow-wrap: anywhere; }
  .ft td:first-child { grid-column: 1 / -1; font-weight: 600; }
  .ft td small { font-weight: 400; white-space: normal; }
  .ft td:empty { display: none; }
  .ft td[data-head]:not(:first-child)::before { content: attr(data-head); display: block; color: var(--ft-quiet);
    font-size: .75rem; overflow-wrap: anywhere; }
}
.ft-charts { columns: 2 24rem; column-gap: .7rem; margin: .7rem 0 0; }
.ft-charts > div { padding: .2rem; margin-bottom: .7rem; break-inside: avoid; }
.ft-notes { margin: .5rem 0; padding-left: 1.1rem; list-style: disc; color: var(--ft-quiet);
  overflow-wrap: anywhere; }
.ft-problem { border: 1px solid #d97706; background: color-mix(in srgb, #d97706 10%, transparent); border-radius: 10px;
  padding: .8rem 1rem; overflow-wrap: anywhere; }
.ft-problem p { margin: .25rem 0 0; }
.ft-empty { color: var(--ft-quiet); border: 1px dashed var(--border-color-primary); border-radius: 10px;
  padding: 2.4rem 1rem; text-align: center; }
.ft-drop { display: block; margin: 0 .8rem .8rem; border: 1.5px dashed var(--border-color-primary); border-radius: 10px;
  padding: .8rem 1rem; cursor: pointer; color: var(--ft-quiet); text-align: center;
  overflow-wrap: anywhere; }
.ft-drop:hover, .ft-drop.ft-over, .ft-drop:focus-within { border-color: var(--color-accent); }
.ft-drop b { color: var(--body-text-color); }
.ft-drop input { position: absolute; opacity: 0; width: 1px; height: 1px; }
.ft-drop button { margin-left: .4rem; padding: 0 .5rem; border-radius: 6px; cursor: pointer;
  border: 1px solid var(--border-color-primary); background: none; color: inherit; }
.ft-drop em { display: block; font-style: normal; color: #d97706; }
.ft-verdict { margin: .3rem 0 .7rem; padding: .55rem .8rem; border-radius: 10px; font-weight: 600;
  overflow-wrap: anywhere; border-left: 4px solid; }
.ft-yes { border-color: #15803d; background: color-mix(in srgb, #15803d 12%, transparent); }
.ft-perhaps { border-color: #b45309; background: color-mix(in srgb, #b45309 14%, transparent); }
.ft-no { border-color: #b91c1c; background: color-mix(in srgb, #b91c1c 12%, transparent); }
.ft-busy { padding: 2rem 1rem; text-align: center; color: var(--ft-quiet); border-radius: 10px;
  border: 1px dashed var(--border-color-primary); }
.ft-busy p { margin: .8rem 0 .2rem; }
.ft-bar { height: 4px; border-radius: 2px; background: linear-gradient(90deg, transparent, var(--color-accent),
  transparent) 0 / 40% 100% no-repeat; animation: ft-run 1.4s linear infinite; }
@keyframes ft-run { from { background-position: -60% 0; } to { background-position: 160% 0; } }
@media (prefers-reduced-motion: reduce) { .ft-bar { animation: none; } }
.ft-foot { color: var(--ft-quiet); font-size: .85rem; text-align: center; padding: .6rem 0; }
@media (max-width: 640px) { .gradio-container { padding: .6rem !important; }
  .ft th, .ft td { padding: .35rem .5rem; } }
"""

DROP_TEMPLATE = """
<label class="ft-drop"><input type="file" accept=".onnx,.pt2" aria-label="Upload a model">
{{#if value}}<b>{{name}}</b><button type="button" aria-label="Remove the file">remove</button>
{{else}}or drop an ONNX or .pt2 file here, or <u>choose one</u>{{/if}}
{{#if note}}<em>{{note}}</em>{{/if}}</label>
"""

# The file goes to the API, not to Gradio, so that all uploads have the same limits. The value becomes upload:ID.
DROP_SCRIPT = """
const forget = () => {
  if (props.value) fetch('api/uploads/' + props.value.slice(7), {method: 'DELETE', keepalive: true});
  props.value = ''; props.name = '';
};
const send = async (file) => {
  forget();
  props.note = 'Sending ' + file.name + ' …';
  const form = new FormData();
  form.append('file', file);
  try {
    const answer = await fetch('api/uploads', {method: 'POST', body: form});
    const found = await answer.json();
    if (!answer.ok) { props.note = found.error; return; }
    props.name = found.name; props.note = ''; props.value = found.model;
    trigger('upload');
  } catch (error) {
    props.note = 'The file could not be sent: it may be too large for this server.';
  }
};
element.addEventListener('change', (event) => {
  if (event.target.files && event.target.files.length) send(event.target.files[0]);
});
element.addEventListener('click', (event) => {
  if (event.target.tagName === 'BUTTON') { event.preventDefault(); props.note = ''; forget(); }
});
for (const name of ['dragover', 'dragleave', 'drop']) {
  element.addEventListener(name, (event) => {
    event.preventDefault();
    const drop = element.querySelector('.ft-drop');
    if (drop) drop.classList.toggle('ft-over', name === 'dragover');
    if (name === 'drop' && event.dataTransfer.files.length) send(event.dataTransfer.files[0]);
  });
}
window.addEventListener('pagehide', forget);
"""

# A name is typed after a file was dropped: the file goes, for the later of both is meant.
FORGET_SCRIPT = """
(upload) => {
  if (upload) fetch('api/uploads/' + upload.slice(7), {method: 'DELETE', keepalive: true});
  return '';
}
"""

# The text came with the answer, so the server writes no file for the download.
_DOWNLOAD = """
(text) => {
  if (!text) return;
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type: 'KIND'}));
  link.download = 'NAME';
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
"""


def download_script(name: str) -> str:
    """A script that saves a text under a name."""
    return _DOWNLOAD.replace("KIND", "text/html" if name.endswith(".html") else "application/json").replace(
        "NAME", name
    )
