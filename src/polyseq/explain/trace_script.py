"""The style and the script of a trace's page: drawing only, what to draw is in the page's data.

Leaves: two texts that `trace_page` puts into the page. Needs no network.
"""

from __future__ import annotations

STYLE = """
body { font: 15px/1.5 "DejaVu Sans", Arial, sans-serif; color: #000; background: #fff; margin: 24px auto;
       max-width: 1240px; padding: 0 20px; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin: 28px 0 6px; }
pre { font: 13px/1.45 "DejaVu Sans Mono", monospace; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 2px 14px 2px 0; text-align: right; border-bottom: 1px solid #ddd; }
th { color: #555; font-weight: normal; } th:first-child, td:first-child { text-align: left; }
canvas, svg { display: block; width: 100%; }
input[type=range] { width: 100%; } button { font: inherit; padding: 1px 10px; }
.said { color: #555; font-size: 13px; min-height: 20px; } .bar { background: #0072B2; height: 12px; }
.key { display: inline-block; margin-right: 20px; } .key svg { display: inline; width: 34px; vertical-align: -3px; }
.cols { display: flex; gap: 48px; flex-wrap: wrap; align-items: flex-start; }
"""

SCRIPT = r"""
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const el = id => document.getElementById(id);
const KINDS = { prefill: ["#E69F00", 1], decode: ["#56B4E9", 0], mixed: ["#009E73", 2] };
const esc = s => String(s).replace(/[&<>"]/g, c => "&#" + c.charCodeAt(0) + ";");
const colour = s => D.colours[s % D.colours.length];
const us = t => t >= 1e6 ? (t / 1e6).toFixed(3) + " s" : (t / 1e3).toFixed(2) + " ms";

// ---- time ----
const X0 = 110, TOP = 26, BAR = 36, LANE = 20, shown = D.seqs.slice(0, 64);
const canvas = el("time"), H = TOP + BAR + 14 + LANE * shown.length + 8;
let view = [0, D.total], moment = D.moments.length;

function hatch(g, x, y, w, h, kind) {
  g.fillStyle = KINDS[kind][0]; g.fillRect(x, y, w, h);
  if (!KINDS[kind][1] || w < 3) return;
  g.save(); g.beginPath(); g.rect(x, y, w, h); g.clip(); g.strokeStyle = "rgba(0,0,0,.45)"; g.lineWidth = 1;
  g.beginPath();
  for (let i = -h; i < w; i += 7) {
    g.moveTo(x + i, y + h); g.lineTo(x + i + h, y);
    if (KINDS[kind][1] === 2) { g.moveTo(x + i, y); g.lineTo(x + i + h, y + h); }
  }
  g.stroke(); g.restore();
}

function word(g, text, x, y, w) {  // a label on its own patch, where there is room
  const n = g.measureText(text).width;
  if (n + 4 > w) return;
  g.fillStyle = "rgba(255,255,255,.85)"; g.fillRect(x + w / 2 - n / 2 - 2, y - 7, n + 4, 14);
  g.fillStyle = "#000"; g.textAlign = "center"; g.fillText(text, x + w / 2, y);
}

function drawTime() {
  const W = canvas.clientWidth, r = window.devicePixelRatio || 1, g = canvas.getContext("2d");
  canvas.width = W * r; canvas.height = H * r; canvas.style.height = H + "px"; g.scale(r, r);
  g.fillStyle = "#fff"; g.fillRect(0, 0, W, H);
  g.font = "12px DejaVu Sans, Arial, sans-serif"; g.textBaseline = "middle";
  const px = (W - X0) / (view[1] - view[0]), x = t => X0 + (t - view[0]) * px;
  let step = Math.pow(10, Math.floor(Math.log10((view[1] - view[0]) / 5)));
  while ((view[1] - view[0]) / step > 12) step *= 2;
  for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
    g.fillStyle = "#ddd"; g.fillRect(x(t), TOP - 8, 1, H); g.fillStyle = "#555"; g.textAlign = "left";
    if (x(t) < W - 60) g.fillText(us(t), x(t) + 3, TOP - 14);
  }
  g.textAlign = "right"; g.fillStyle = "#000"; g.fillText("ubatches", X0 - 10, TOP + BAR / 2);
  shown.forEach((s, i) => g.fillText("sequence " + s, X0 - 10, TOP + BAR + 14 + LANE * i + 8));
  g.save(); g.beginPath(); g.rect(X0, 0, W, H); g.clip();
  const lane = new Map(shown.map((s, i) => [s, i]));
  for (const b of D.blocks) {
    if (b.at + b.us < view[0] || b.at > view[1]) continue;
    const w = Math.max(b.us * px - (b.us * px > 4 ? 1 : 0), .7);
    const kind = b.decode === b.n ? "decode" : b.decode ? "mixed" : "prefill";
    hatch(g, x(b.at), TOP, w, BAR, kind); word(g, b.shape, x(b.at), TOP + BAR / 2, w);
    for (const [s, n, d] of b.seqs) {
      if (!lane.has(s)) continue;
      const y = TOP + BAR + 14 + LANE * lane.get(s);
      hatch(g, x(b.at), y, w, LANE - 4, d ? "decode" : "prefill"); if (n > 1) word(g, String(n), x(b.at), y + 8, w);
    }
  }
  g.fillStyle = "#000";
  for (const f of D.failed) {
    g.fillRect(x(f.at), TOP - 2, Math.max(f.us * px, 2), BAR + 4);
    g.textAlign = x(f.at) > W - 90 ? "right" : "center";
    g.fillText("failed: " + f.code, x(f.at), TOP + BAR + 8);
  }
  const at = moment ? D.moments[moment - 1].at : 0;
  g.fillRect(x(at) - 1, 16, 2, H);
  g.beginPath(); g.moveTo(x(at) - 6, 16); g.lineTo(x(at) + 6, 16); g.lineTo(x(at), 24); g.fill();
  g.restore();
}

function zoom(by) {
  const mid = by ? (moment ? D.moments[moment - 1].at : 0) : 0, half = (view[1] - view[0]) * by / 2;
  view = by && half * 2 < D.total ? [Math.max(0, mid - half), Math.max(0, mid - half) + half * 2] : [0, D.total];
  drawTime();
}

canvas.addEventListener("mousemove", e => {
  const t = view[0] + (e.offsetX - X0) / (canvas.clientWidth - X0) * (view[1] - view[0]);
  const b = D.blocks.find(b => b.at <= t && t <= b.at + b.us);
  el("timesaid").textContent = !b ? "at " + us(Math.max(t, 0)) :
    `call ${b.call}, ubatch ${b.i}: ${b.n} rows (${b.decode} decode), shape ${b.shape}, ${us(b.us)}, ` +
    `ended because: ${b.reason}; plan ${b.miss ? "built: " + b.miss : "reused"}`;
});
canvas.addEventListener("click", e => {
  const t = view[0] + (e.offsetX - X0) / (canvas.clientWidth - X0) * (view[1] - view[0]);
  el("moment").value = D.moments.filter(m => m.at <= t).length; show();
});

// ---- cells ----
const N = D.n_stream * D.n_cells, pos = new Int32Array(N), set = new Int32Array(N);
const W = 1200, ROW = 20, rowsOfStream = Math.max(1, Math.floor(64 / D.n_stream));
const perRow = Math.max(64, Math.ceil(D.n_drawn / rowsOfStream)), cellW = (W - X0) / perRow;

function play(k) {
  pos.fill(-1); set.fill(0);
  for (let i = 0; i < k; i++) {
    const d = D.moments[i].changed;
    for (let j = 0; j < d.length; j += 3) { pos[d[j]] = d[j + 1]; set[d[j]] = d[j + 2]; }
  }
}

function factOf(s, held) {  // a sentence about one stream; `held` gains what its sequences hold
  let used = 0, runs = 0, best = 0, bestAt = 0, free = 0;
  for (let c = 0; c < D.n_cells; c++) {
    const i = s * D.n_cells + c;
    if (pos[i] < 0) {
      if (!free) runs++;
      free++;
      if (free > best) { best = free; bestAt = c - free + 1; }
      continue;
    }
    free = 0; used++;
    for (const q of D.sets[set[i]]) {
      const v = held.get(q) || [0, pos[i], pos[i]];
      held.set(q, [v[0] + 1, Math.min(v[1], pos[i]), Math.max(v[2], pos[i])]);
    }
  }
  const largest = best ? `, the largest ${best} cells from cell ${bestAt}` : "";
  return `stream ${s}: ${used} of ${D.n_cells} cells used; ${runs} free run${runs === 1 ? "" : "s"}${largest}`;
}

function idWords(ids) {
  const whole = ids.length > 3 && ids[ids.length - 1] - ids[0] === ids.length - 1;
  return whole ? ids[0] + ".." + ids[ids.length - 1] : ids.join("+");
}

function runBoxes(i, c, n, x, y) {  // n like cells from cell c
  const ids = D.sets[set[i]], w = n * cellW - Math.min(1, cellW / 4), h = ROW - 3;
  const box = `x="${x.toFixed(2)}" y="${y}" width="${w.toFixed(2)}" height="${h}"`;
  const where = n > 1 ? `cells ${c}..${c + n - 1}` : `cell ${c}`;
  if (pos[i] < 0) {
    return `<rect ${box} fill="#fff" stroke="#bbb" stroke-dasharray="2 2"><title>${where}: free</title></rect>`;
  }
  const span = n > 1 ? `p${pos[i]}..${pos[i] + n - 1}` : `p${pos[i]}`, fill = colour(ids[0]), shared = ids.length > 1;
  const tip = `<title>${where}: ${span} of sequence ${ids.join(", ")}</title>`;
  let made = `<rect ${box} fill="${fill}">${tip}</rect>`;
  if (shared) made += `<rect ${box} fill="url(#shared)">${tip}</rect>`;
  const label = [`${idWords(ids)}: ${span}`, idWords(ids)].find(t => t.length * 7 + 2 <= w);
  if (!label) return made;
  const mid = x + w / 2, half = label.length * 3.6, ink = fill === "#0072B2" && !shared ? "#fff" : "#000";
  if (shared) made += `<rect x="${mid - half}" y="${y + 2}" width="${2 * half}" height="${h - 4}" fill="#fff"/>`;
  const place = `x="${mid}" y="${y + 13}" text-anchor="middle" font-size="11"`;
  return made + `<text ${place} fill="${ink}" pointer-events="none">${label}</text>`;
}

function drawCells() {
  const out = [], facts = [], held = new Map();
  let y = 4;
  for (let s = 0; s < D.n_stream; s++) {
    facts.push(factOf(s, held));
    for (let c0 = 0; c0 < D.n_drawn; c0 += perRow) {
      const name = D.n_stream > 1 ? `stream ${s}, ${c0}` : `cell ${c0}`, end = Math.min(c0 + perRow, D.n_drawn);
      out.push(`<text x="${X0 - 8}" y="${y + 13}" text-anchor="end" font-size="12">${name}</text>`);
      for (let c = c0; c < end;) {
        const i = s * D.n_cells + c, rises = pos[i] < 0 ? 0 : 1;
        let n = 1;
        while (c + n < end && set[i + n] === set[i] && pos[i + n] === pos[i] + n * rises) n++;
        out.push(runBoxes(i, c, n, X0 + (c - c0) * cellW, y));
        c += n;
      }
      y += ROW;
    }
  }
  const shared = '<pattern id="shared" width="7" height="7" patternUnits="userSpaceOnUse" ' +
    'patternTransform="rotate(45)"><rect width="2" height="7" fill="#000" opacity=".45"/></pattern>';
  el("cells").innerHTML = `<svg viewBox="0 0 ${W} ${y}" font-family="DejaVu Sans, Arial, sans-serif">` +
    `<defs>${shared}</defs>${out.join("")}</svg>`;
  if (D.n_drawn < D.n_cells) facts.push(`cells ${D.n_drawn}..${D.n_cells - 1} were never used and are not drawn`);
  el("facts").innerHTML = facts.slice(0, 40).map(esc).join("<br>");
  const rows = [...held].sort((a, b) => a[0] - b[0]).map(
    ([q, v]) => `<tr><td>${q}</td><td>${v[0]}</td><td>${v[1]}..${v[2]}</td></tr>`);
  el("held").innerHTML = "<tr><th>sequence</th><th>cells</th><th>positions</th></tr>" +
    (rows.join("") || "<tr><td>nothing is held</td></tr>");
}

function show() {
  moment = Number(el("moment").value);
  const m = moment ? D.moments[moment - 1] : null;
  el("when").textContent = m ? `moment ${moment} of ${D.moments.length}, at ${us(m.at)}, after ${m.label}`
    : `before the first of ${D.moments.length} moments`;
  play(moment); drawCells(); drawTime();
}

el("moment").max = D.moments.length; el("moment").value = D.first_shown;
el("moment").addEventListener("input", show); window.addEventListener("resize", drawTime);
el("in").onclick = () => zoom(.4); el("out").onclick = () => zoom(2.5); el("all").onclick = () => zoom(0);
show();
"""
