"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("report-data").textContent);

  /* ---- theme ------------------------------------------------------------------------------- */
  const theme = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    theme.textContent = "Theme: " + next;
  });

  /* ---- tables ------------------------------------------------------------------------------ */
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
    return Number.isNaN(number) ? cell.textContent : number;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1; /* the unknown comes last */
    if (typeof b === "number") return 1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  const sortBy = (table, column) => {
    const heads = [...table.tHead.rows[0].cells];
    const up = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, index) => ({ row, index, value: valueOf(row, column) }));
    rows.sort((a, b) => (up ? 1 : -1) * compare(a.value, b.value) || a.index - b.index);
    body.append(...rows.map((entry) => entry.row));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => sortBy(table, column));
    });
  }

  /* ---- inputs in full, and what is folded, on paper ----------------------------------------- */
  const raw = document.getElementById("raw");
  if (raw) {
    raw.addEventListener("toggle", () => {
      const pre = raw.querySelector("pre");
      if (!pre.textContent) pre.textContent = JSON.stringify(data.result.inputs, null, 2);
    });
  }
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details:not(#raw):not([open])")) {
      folded.open = true;
      folded.dataset.folded = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const folded of document.querySelectorAll("details[data-folded]")) {
      folded.open = false;
      delete folded.dataset.folded;
    }
  });

  /* ---- timeline ---------------------------------------------------------------------------- */
  const box = document.querySelector(".timeline");
  const drawn = data.pictures.timeline;
  if (!box || !drawn) return;

  const NS = "http://www.w3.org/2000/svg";
  const LANE = 18, THIN = 6, GAP = 7, AXIS = 24, GUTTER = 34, LABEL_PX = 16, LEAST = 200;
  const make = (name, attributes, ...children) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const seconds = (ticks) => (ticks / drawn.ticks) * drawn.simulated_step_s;
  const said = (s, step) => {
    if (s === 0) return "0 s";
    const [factor, unit] = s < 1e-3 ? [1e6, "µs"] : s < 1 ? [1e3, "ms"] : [1, "s"];
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10((step || s / 1000) * factor))));
    return (s * factor).toFixed(digits) + " " + unit;
  };
  const TAILS = [
    ["data_s", "p-exposed_dp", "dp exchange"],
    ["uneven_s", "p-bubble", "waits for the longest documents"],
    ["update_s", "p-optimizer", "optimizer"],
  ];

  /* every rectangle of a stage: [start, end, class, lower lane, what it is, micro-batch] */
  const spansOf = (stage) => {
    const letters = Object.keys(stage.operations);
    const left = stage.micro_batches.map(([first, count]) => [first, count]);
    const counts = {};
    for (const code of stage.codes) counts[code] = (counts[code] || 0) + 1;
    const batches = {};
    for (const letter of letters) {
      batches[letter] = [];
      while (batches[letter].length < (counts[letter] || 0)) {
        const [first, count] = left.shift();
        for (let k = 0; k < count; k++) batches[letter].push(first + k);
      }
    }
    const chunks = Math.max(...Object.values(stage.operations).map((o) => o.chunk)) + 1;
    const at = {};
    const spans = [];
    [...stage.codes].forEach((code, index) => {
      const kind = stage.operations[code];
      const batch = batches[code][(at[code] = (at[code] || 0) + 1) - 1];
      const start = stage.starts[index];
      const end = start + kind.length;
      const name = kind.phase.replace("-", " ") + (chunks > 1 ? ", chunk " + kind.chunk : "") + ", micro-batch " + batch;
      const cls = { forward: "f-forward", "weight-gradient": "f-weight-gradient" }[kind.phase] || "f-backward";
      spans.push({ start, end, cls, lower: false, name, batch, kind });
      let from = end - kind.exposed.reduce((sum, length) => sum + length, 0);
      kind.exposed.forEach((length, axis) => {
        if (length) spans.push({ start: from, end: from + length, cls: "p-exposed_" + drawn.axes[axis], lower: true,
          name: "exposed " + drawn.axes[axis] + " exchange of " + name });
        from += length;
      });
    });
    if (stage.fold) spans.push({ start: stage.fold.start, end: stage.fold.end, cls: "f-fold", lower: false,
      name: stage.fold.operations + " operations, not drawn one by one" });
    let from = stage.last;
    for (const [key, cls, name] of TAILS) {
      if (stage.tail[key]) spans.push({ start: from, end: from + stage.tail[key], cls, lower: key !== "update_s", name });
      from += stage.tail[key];
    }
    return spans;
  };
  const rows = drawn.stages.map((stage) => ({ stage, spans: spansOf(stage) }));
  const view = { start: 0, end: drawn.ticks };
  const shownWindow = document.getElementById("timeline-window");
  const point = document.getElementById("timeline-point");
  const tools = document.querySelector(".tools");
  tools.hidden = false;

  const scaleOf = () => {
    const width = Math.max(box.clientWidth, 120);
    return { width, px: (width - GUTTER) / (view.end - view.start) };
  };

  const drawRow = (row, top, scale) => {
    const paths = new Map();
    const labels = [];
    const put = (span) => {
      const from = Math.max(span.start, view.start), to = Math.min(span.end, view.end);
      if (to <= from) return;
      const key = span.cls + "|" + span.lower;
      const x = GUTTER + (from - view.start) * scale.px, width = (to - from) * scale.px;
      let entry = paths.get(key);
      if (!entry) paths.set(key, (entry = { cls: span.cls, lower: span.lower, runs: [], drawn: 0 }));
      entry.drawn += 1;
      const last = entry.runs[entry.runs.length - 1];
      if (last && x - last[1] < 0.15 && width < 1) last[1] = x + width;
      else entry.runs.push([x, x + width]);
      if (span.batch !== undefined && width > LABEL_PX) {
        labels.push(make("text", { x: (x + width / 2).toFixed(1), y: top + 13, "text-anchor": "middle",
          class: "op" + (span.cls === "f-backward" ? "" : " op-dark") }, String(span.batch)));
      }
    };
    row.spans.forEach(put);
    const inset = scale.px * drawn.ticks > 0 ? 0.5 : 0;
    const shapes = [...paths.values()].map((entry) => {
      const y = entry.lower ? top + LANE : top, high = entry.lower ? THIN : LANE;
      const d = entry.runs.map(([a, b]) => {
        const gap = b - a > 3 && !entry.lower ? inset : 0; /* a hair between passes that are wide enough */
        return "M" + a.toFixed(2) + " " + y + "h" + (b - a - gap).toFixed(2) + "v" + high + "H" + a.toFixed(2) + "z";
      });
      return make("path", { class: entry.cls, d: d.join(""), "data-count": entry.drawn });
    });
    const label = make("text", { x: 0, y: top + 13, class: "t small" }, "S" + row.stage.index);
    const idle = make("rect", { x: GUTTER, y: top, width: scale.width - GUTTER, height: LANE, class: "f-idle" });
    const lane = make("rect", { x: GUTTER, y: top + LANE, width: scale.width - GUTTER, height: THIN, class: "track" });
    return make("g", { "data-row": row.stage.index }, label, idle, lane, ...shapes, ...labels);
  };

  const roundStep = (span, count) => {
    const rough = span / count, size = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((k) => k * size).find((step) => step >= rough);
  };
  const drawAxis = (bottom, scale) => {
    const from = seconds(view.start), to = seconds(view.end);
    const step = roundStep(to - from, Math.max(2, Math.floor(scale.width / 130)));
    const made = [];
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) {
      const x = GUTTER + ((k * step - from) / (to - from)) * (scale.width - GUTTER);
      made.push(make("line", { x1: x, x2: x, y1: 0, y2: bottom, class: "grid" }));
      const anchor = x > scale.width - 30 ? "end" : x < GUTTER + 12 ? "start" : "middle";
      made.push(make("text", { x, y: bottom + 15, "text-anchor": anchor, class: "t small num" }, said(k * step, step)));
    }
    return made;
  };

  const draw = () => {
    const scale = scaleOf();
    const bottom = rows.length * (LANE + THIN + GAP);
    const svg = make("svg", { width: scale.width, height: bottom + AXIS, "aria-hidden": "true" });
    svg.append(...drawAxis(bottom, scale));
    rows.forEach((row, index) => svg.append(drawRow(row, index * (LANE + THIN + GAP), scale)));
    box.replaceChildren(svg);
    box.dataset.start = view.start;
    box.dataset.end = view.end;
    const span = seconds(view.end - view.start);
    shownWindow.textContent = said(seconds(view.start), span / 1000) + " to " + said(seconds(view.end), span / 1000);
  };

  const show = (start, span) => {
    const length = Math.min(drawn.ticks, Math.max(LEAST, Math.round(span)));
    view.start = Math.max(0, Math.min(Math.round(start), drawn.ticks - length));
    view.end = view.start + length;
    draw();
  };
  const zoom = (factor, at = 0.5) => {
    const span = view.end - view.start;
    show(view.start + span * at - span * factor * at, span * factor);
  };
  const move = (share) => show(view.start + share * (view.end - view.start), view.end - view.start);
  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), reset: () => show(0, drawn.ticks),
  };
  tools.addEventListener("click", (event) => {
    const wanted = event.target.closest("[data-do]");
    if (wanted) actions[wanted.dataset.do]();
  });
  const keys = { "+": "in", "=": "in", "-": "out", "_": "out", "0": "reset", Home: "reset", ArrowLeft: "left", ArrowRight: "right" };
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  const shareOf = (event) => {
    const area = box.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - area.left - GUTTER) / (area.width - GUTTER)));
  };
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; /* the wheel alone scrolls the page */
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.002), shareOf(event));
  }, { passive: false });
  let held = null;
  box.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, start: view.start };
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointerup", () => { held = null; });
  box.addEventListener("pointercancel", () => { held = null; });
  box.addEventListener("pointermove", (event) => {
    if (held) {
      show(held.start - (event.clientX - held.x) / scaleOf().px, view.end - view.start);
      return;
    }
    const area = box.getBoundingClientRect();
    const index = Math.floor((event.clientY - area.top) / (LANE + THIN + GAP));
    const row = rows[index];
    if (!row) return;
    const lower = event.clientY - area.top - index * (LANE + THIN + GAP) > LANE;
    const at = view.start + shareOf(event) * (view.end - view.start);
    const span = row.spans.find((one) => one.lower === lower && one.start <= at && at < one.end);
    point.textContent = "Stage " + row.stage.index + ": " + (span
      ? span.name + ", " + said(seconds(span.start)) + " to " + said(seconds(span.end)) + " (" + said(seconds(span.end - span.start)) + ")"
      : lower ? "no exposed exchange" : "waits");
  });
  let width = 0;
  new ResizeObserver(() => {
    if (box.clientWidth !== width) { width = box.clientWidth; draw(); }
  }).observe(box);
  width = box.clientWidth;
  draw();
})();
