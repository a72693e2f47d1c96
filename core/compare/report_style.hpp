// The style sheet of a report.
#pragma once

namespace yoke::compare {

// The pictures for a screen have 860 pixels, and text of 12. Below a width of 820 pixels the text
// would be smaller than 11, so the pictures for a telephone are shown instead, and fewer columns of
// the summary.
constexpr char kStyle[] = R"css(
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --faint: #d9d9d9; --good: #00734f; --bad: #b23c00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --faint: #404040; --good: #4fc79f; --bad: #ff9a5c; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1120px; margin: 2em auto; padding: 0 1em; }
h1, p { overflow-wrap: anywhere; } h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid var(--faint); }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
td, th { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--faint); white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.take td:first-child { font-weight: 600; }
.take td:first-child::after { content: ""; display: inline-block; width: 6px; height: 6px; margin-left: 6px;
  border: 3px solid var(--good); border-radius: 50%; }
.phone { display: none; }
@media screen and (max-width: 820px) { .phone { display: block; } .screen { display: none; }
  .phone svg { max-width: 500px; }
  .summary :is(th, td):is(:nth-child(3), :nth-child(5), :nth-child(6)) { display: none; } }
@media screen and (max-width: 520px) {
  table { font-size: 12px; } td, th { padding-right: 7px; white-space: normal; } td.n, th.n { white-space: nowrap; }
  td:first-child { overflow-wrap: anywhere; min-width: 5em; } .more { display: none; }
  .summary :is(th, td):is(:nth-child(2), :nth-child(8)) { display: none; } }
.answer { border-left: 4px solid var(--good); padding: 0.1em 0 0.1em 1em; font-size: 1.07em; }
.answer.unclear { border-left-color: var(--bad); }
.answer p { margin: 0.4em 0; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
pre { font-size: 12px; overflow: auto; max-height: 28em; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; margin: 0.6em 0; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; } svg .title { font-weight: 600; font-size: 13px; }
svg .axis { stroke: var(--ink); } svg .grid { stroke: var(--faint); }
svg .ring { fill: none; stroke: var(--good); stroke-width: 3; } svg .hatch { fill: #7f7f7f; }
svg .range { stroke: var(--ink); stroke-opacity: 0.4; stroke-width: 2; }
svg .bound { stroke: var(--bad); stroke-dasharray: 5 4; } svg .median { stroke: var(--ink); stroke-width: 3; }
svg .band { fill: #7f7f7f; fill-opacity: 0.3; stroke: #7f7f7f; } svg .middle { stroke: var(--ink); stroke-width: 2; } svg rect.middle { fill: var(--ink); }
)css";

}  // namespace yoke::compare
