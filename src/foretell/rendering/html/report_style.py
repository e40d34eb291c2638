"""Rendering: the style of a report: on a screen, on a phone, in dark mode, in print."""

from foretell.rendering.svg.canvas import CHART_CSS

REPORT_CSS = (
    CHART_CSS
    + """
:root{--ground:#fff;--ink:#1b2430;--quiet:#5a6675;--line:#e3e7ec;--soft:#f5f7f9;--mark:var(--chart-0);
--chart-paper:transparent;--alarm:#a8320a;--alarm-soft:#fdf3ee;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ground:#14181f;--ink:#e8ecf1;--quiet:#a3aebb;--line:#2a323c;--soft:#1b2129;
--chart-paper:transparent;--alarm:#f39255;--alarm-soft:#2a1f19}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--ground);color:var(--ink);font:1rem/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums lining-nums}
main,header,footer{max-width:68rem;margin:0 auto;padding:0 2rem}
header{padding-top:4rem}
.over{margin:0;color:var(--quiet);font-size:.8125rem;letter-spacing:.08em;text-transform:uppercase}
h1{margin:.25rem 0 .5rem;font-size:2.5rem;line-height:1.15;font-weight:650;letter-spacing:-.02em;
overflow-wrap:anywhere}
h2{margin:0 0 .25rem;font-size:1.375rem;line-height:1.3;font-weight:650;letter-spacing:-.01em}
h3{margin:0 0 .75rem;font-size:1rem;font-weight:600}
p{margin:0 0 1rem;max-width:44rem}
.lead{color:var(--quiet);margin-bottom:1.75rem}
.where{font-size:1.125rem;margin:0}
.counts{color:var(--quiet);margin:.125rem 0 0}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;margin-top:2rem;padding:.75rem 0;border-top:1px solid var(--line);
border-bottom:1px solid var(--line);font-size:.9375rem}
a{color:var(--mark);text-decoration:none}
a:hover,a:focus-visible{text-decoration:underline}
section{padding:3.5rem 0 0}
.verdict{max-width:none;font-size:1.125rem;line-height:1.75;overflow-wrap:anywhere}
.verdict span{font-weight:650}
.fits-yes{color:#157a3c}.fits-perhaps{color:#9a5b00}.fits-no{color:var(--alarm)}
@media (prefers-color-scheme:dark){.fits-yes{color:#57c785}.fits-perhaps{color:#e0a33e}}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:2.25rem 2rem;margin:2rem 0 2.5rem}
.figure b{display:block;font-size:2rem;line-height:1.2;font-weight:600;letter-spacing:-.02em;white-space:nowrap}
.figure b small{font-size:1rem;font-weight:400;letter-spacing:0;color:var(--quiet)}
.figure .label{color:var(--quiet);font-size:.875rem}
.figure .range{font-size:.875rem}
.track{display:block;position:relative;height:4px;margin:.5rem 0;border-radius:2px;background:var(--line)}
.track i{position:absolute;top:0;bottom:0;border-radius:2px;background:var(--mark);opacity:.45}
.track u{position:absolute;top:-3px;width:2px;height:10px;margin-left:-1px;background:var(--ink)}
dl{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:.5rem 2rem;margin:0 0 1.5rem}
dt{color:var(--quiet)}
dd{margin:0;min-width:0;overflow-wrap:anywhere}
.note{margin:0 0 1rem;padding:.875rem 1.125rem;border-left:3px solid var(--line);background:var(--soft);max-width:none;
font-size:.9375rem;overflow-wrap:anywhere}
.alarm{border-color:var(--alarm);background:var(--alarm-soft)}
.alarm strong,.bad{color:var(--alarm)}
ul.note{padding-left:2.25rem}
ul.note li+li{margin-top:.375rem}
.stack{display:flex;height:1.75rem;margin:0 0 .5rem;border-radius:4px;overflow:hidden;background:var(--line)}
.stack i{display:block;height:100%}
.stack i+i{border-left:1px solid var(--ground)}
.c0{background:var(--chart-0)}.c1{background:var(--chart-2)}.c2{background:var(--chart-4)}.c3{background:var(--chart-5)}
.over-capacity{background:var(--alarm)}
.scale{display:flex;justify-content:space-between;gap:1rem;margin:0 0 2rem;color:var(--quiet);font-size:.875rem;
max-width:none}
.key{display:flex;flex-wrap:wrap;gap:.5rem 2.25rem;margin:.75rem 0 1.5rem;padding:0;list-style:none}
.key i{display:inline-block;width:.75rem;height:.75rem;margin-right:.5rem;border-radius:2px}
.key span{color:var(--quiet);margin-right:.5rem}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:2.5rem 3rem;align-items:start}
.pair>*{min-width:0}
.pair svg.chart{width:calc(100% + 2rem);margin:0 -1rem}
.scroll,.cards{margin:0 0 1.5rem}
.scroll{overflow-x:auto}
.place td:first-child{min-width:11rem}
table{width:100%;border-collapse:collapse;font-size:.9375rem;line-height:1.4}
th{padding:.5rem .75rem .5rem 0;border-bottom:1px solid var(--quiet);color:var(--quiet);font-weight:400;
font-size:.8125rem;text-align:left;vertical-align:bottom}
td{padding:.5625rem .75rem .5625rem 0;border-bottom:1px solid var(--line);vertical-align:baseline;
overflow-wrap:anywhere}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right;white-space:nowrap}
td small{display:block;color:var(--quiet);font-size:.8667em;font-weight:400}
td.n small{white-space:nowrap}
tr.own td{font-weight:600}
tr.off td{color:var(--quiet)}
.share{min-width:5rem;width:24%}
.share i{display:block;height:.625rem;border-radius:2px;background:var(--mark);min-width:1px}
.off .share i{background:var(--line)}
.tag{display:inline-block;padding:0 .4375rem;border:1px solid var(--line);border-radius:1rem;color:var(--quiet);
font-size:.75rem;font-weight:400;white-space:nowrap}
details{margin:0 0 1.5rem;border-bottom:1px solid var(--line)}
summary{padding:.625rem 0;cursor:pointer;color:var(--mark)}
.picture{margin:0 -1rem 1.5rem}
.narrow-only{display:none}
code,pre{font:.875rem/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
code{overflow-wrap:anywhere}
pre{margin:0 0 1.5rem;padding:1rem 1.125rem;background:var(--soft);border-radius:4px;white-space:pre-wrap;
overflow-wrap:anywhere}
footer{padding-top:3.5rem;padding-bottom:4rem;color:var(--quiet);font-size:.875rem}
@media (max-width:56rem){.pair{grid-template-columns:minmax(0,1fr)}}
@media (max-width:40rem){
main,header,footer{padding-left:1.25rem;padding-right:1.25rem}
header{padding-top:2rem}
h1{font-size:1.875rem}
section{padding-top:2.75rem}
.figures{grid-template-columns:repeat(2,minmax(0,1fr));gap:1.75rem 1.5rem}
.figure b{font-size:1.5rem;white-space:normal}
.scroll .share{width:13%;min-width:2.25rem}
.scroll td,.scroll th{padding-right:.5rem}
dl{grid-template-columns:minmax(0,1fr);gap:0}
dd{margin-bottom:.75rem}
.key{display:grid;grid-template-columns:minmax(0,1fr)}
.cards table,.cards tbody{display:block}
.cards thead{display:none}
.cards tr{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:.375rem 1rem;padding:.875rem 0;
border-bottom:1px solid var(--line)}
.cards td{display:block;padding:0;border:0;text-align:left}
.cards td:first-child,.cards td.share{grid-column:1/-1}
.cards td.share{width:auto}
.cards td.share::before{display:none!important}
.cards td[data-head]:not(:first-child)::before{content:attr(data-head);display:block;color:var(--quiet);
font-size:.75rem;font-weight:400}
.cards td.n,.cards td.n small{white-space:normal}
.cards td:empty{display:none}
.hide{display:none}
.picture{margin:0 -1rem 1.5rem}
.wide-only{display:none}
.narrow-only{display:block}
}
@media print{
@page{size:A4;margin:16mm 15mm}
:root{--ground:#fff;--ink:#000;--quiet:#444;--line:#ccd2d8;--soft:#f5f7f9;--chart-paper:transparent;--alarm:#a8320a;
--alarm-soft:#fff}
html{font-size:10.5px}
body{print-color-adjust:exact;-webkit-print-color-adjust:exact}
main,header,footer{max-width:none;padding-left:0;padding-right:0}
header{padding-top:0}
footer{padding-top:6mm;padding-bottom:0}
nav{display:none}
section{padding-top:8mm}
h2,h3,.lead{break-after:avoid}
p,dd,tr,.figure,.note,.stack,.key,svg.chart{break-inside:avoid}
thead{display:table-header-group}
.figures{grid-template-columns:repeat(5,1fr);gap:4mm;margin:5mm 0}
.figure b{font-size:1.75rem}
.pair{grid-template-columns:repeat(2,minmax(0,1fr));gap:6mm}
.scroll{overflow:visible}
a{color:inherit}
.wide-only{display:block}
.narrow-only{display:none}
details::details-content{content-visibility:visible;display:block;block-size:auto}
summary{color:inherit;font-weight:600;list-style:none}
}
"""
)
