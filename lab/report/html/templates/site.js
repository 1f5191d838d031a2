// Explores the values of all runs: the data is the document lab.site/1 in the element "data".
// The address holds the view: #view=...&scenario=...&metric=... Texts are only ever set as text.

const VIEWS = {explore: "Explore", compare: "Compare", history: "History", percentiles: "Percentiles"};
const FACTS = {
  run: "run", kernel: "kernel", mdadm: "mdadm", image: "image", clock: "clock", host: "host",
  accelerator: "accelerator", qemu: "QEMU", lab: "lab", branch: "branch",
};
const ROWS = 50;       // of a table at first
const LINES = 12;      // series, and panels, of a chart
const MARKS = 3000;    // of a chart
const SMALL = 0.05;    // a smaller change does not matter, as in `lab results compare`
const SMALL_REQUEST = 128 * 1024;   // bytes; below, IOPS say more than throughput
const EVERY = "all";   // metrics, in the choice of a comparison
const BYTES = 64 * 2 ** 20;
const MEMBERS = 60000, ENTRY = 46 + 512;   // of a bundle, and bytes of each in its directory
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b8860b", "#a64d86", "#2f8fc4", "#7a5c00", "#5c6670"];
const DARK = ["#4aa8e0", "#ff8a3c", "#3fd0a4", "#f0c04a", "#e39ac6", "#9ad4f5", "#d9b650", "#a3adb7"];
const PERCENTILE = /^(?:(read|write|trim)_)?clat_(?:p(\d+(?:_\d+)?)|(max))$/;

const $ = id => document.getElementById(id);
const site = JSON.parse($("data").textContent);
let state = {};          // what the address says
let rows = [];           // one for each value
let dimensions = new Map();  // by scenario; "" is all
let found_ = new Map();  // rows by scenario and metric
let drawn = null;        // the chart on the page: {key, view}
let marks = [];          // of this chart
let sorted = null;       // column and direction of the main table

// ---- elements and texts

/** Return an element; strings among the children become text. */
function h(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.flat().filter(child => child !== null && child !== undefined));
  return made;
}

/** Return a sentence's parts: commands in backquotes are code, and no line ends within an option. */
const coded = sentence => sentence.split(/(`[^`]+`|--[a-z]+(?: [a-z]+)?)/).filter(Boolean)
  .map(part => part.startsWith("`") ? h("code", {}, part.slice(1, -1)) : part.startsWith("--") ? h("span", {className: "whole"}, part) : part);

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function digits(value, count) {
  const text = Math.abs(value) < 10 ** (count - 1) ? String(+value.toPrecision(count)) : value.toFixed(0);
  return Math.abs(value) < 1e4 ? text : Number(text).toLocaleString("en");
}

/** Return a value with its unit, with prefixes as in reports. */
function show(value, unit) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  const scaled = steps => {
    const [factor, name] = steps.find(([f]) => size >= f) ?? steps.at(-1);
    return `${digits(value / factor, 3)} ${name}`;
  };
  if (unit === "B/s") return scaled([[1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [1, "B/s"]]);
  if (unit === "B") return scaled([[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
  if (unit === "s") return size ? scaled([[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]) : "0 s";
  if (unit === "1/s") return `${digits(value, 4)}/s`;
  if (unit === "×") return `${value < 2 ? value.toFixed(3) : digits(value, 3)} ×`;
  return unit === "1" || !unit ? digits(value, 4) : `${digits(value, 4)} ${unit}`;
}

const percent = share => `${share > 0 ? "+" : ""}${(share * 100).toFixed(1)}%`;

function median(values) {
  const own = [...values].sort((a, b) => a - b), half = own.length >> 1;
  return own.length % 2 ? own[half] : (own[half - 1] + own[half]) / 2;
}

const metricOf = name => site.metrics[name] ?? {words: name.replaceAll("_", " "), unit: "", better: ""};

/** Return an axis' name as a heading: its last part. */
function heading(dimension) {
  if (dimension in FACTS) return FACTS[dimension];
  if (dimension === "started") return "start of the run";
  if (dimension === "disks.count") return "disks";
  const last = dimension.split(".").at(-1);
  return last.includes("/") ? last : last.replaceAll("_", " ");
}

const texts = new Map();

/** Return a dimension's value as text, and remember it. */
function text(dimension, value) {
  if (!texts.has(dimension)) texts.set(dimension, new Map());
  const own = texts.get(dimension);
  if (!own.has(value)) own.set(value, textOf(dimension, value));
  return own.get(value);
}

/** Return a value as text; sizes with their unit. */
function textOf(dimension, value) {
  if (value === null) return "default";
  if (value === undefined || value === "") return "–";
  if (Number.isInteger(value) && value && /(chunk|size|offset|bytes_per_second|\.bs)$/.test(`.${dimension}`)) {
    for (const [factor, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
      if (value % factor === 0) return value / factor + unit;
    }
  }
  return dimension === "started" ? String(value).slice(0, 16).replace("T", " ") : String(value);
}

// ---- data

/** Make a row of each value of a run. */
function addRun(run) {
  const {result} = run, facts = result.environment;
  const common = [
    ["run", result.run.id], ["started", result.run.started], ["scenario", result.run.scenario],
    ["kernel", facts.guest?.kernel], ["mdadm", facts.guest?.mdadm?.replace(/^mdadm - v/, "").split(" ")[0]],
    ["image", facts.image?.name], ["host", facts.host?.name], ["accelerator", facts.accelerator],
    ["qemu", facts.qemu], ["lab", facts.lab], ["branch", facts.branch],
  ];
  for (const cell of result.cells) {
    const own = Object.hasOwn(run.cells ?? {}, cell.id) ? run.cells[cell.id] : {};
    const axes = Object.entries(cell.axes);
    const label = own.label ?? (axes.map(([a, v]) => `${heading(a)} ${text(a, v)}`).join(", ") || cell.id);
    const at = new Map([...axes, ...common, ["clock", cell.clock ?? "real"], ["cell", label]]);
    const shared = {run, cell, own, at, axes, places: new Map()};
    for (const m of cell.measurements ?? []) {
      const known = m.low !== undefined && m.low !== null;
      const exact = m.no_seed_changes_it || (m.values.length === 1 && (own.fixed || metricOf(m.metric).counted));
      const doubts = (cell.checks ?? []).filter(c => !c.workload || c.workload === m.workload);
      rows.push({
        ...shared, m, doubts, y: m.median,
        low: known ? m.low : exact ? m.median : null, high: known ? m.high : exact ? m.median : null,
      });
    }
  }
  dimensions = new Map();
  found_ = new Map();
}

/** Return the rows of a scenario and a metric; "": all. */
function rowsOf(scenario, metric = "") {
  const key = `${scenario}\u0000${metric}`;
  if (!found_.has(key)) {
    found_.set(key, rows.filter(r => (!scenario || r.at.get("scenario") === scenario) && (!metric || r.m.metric === metric)));
  }
  return found_.get(key);
}

/** Whether a dimension has several values in these rows. */
const varies = (found, d) => found.some(r => at(r, d) !== at(found[0], d));

const at = (row, dimension) => dimension === "workload" ? row.m.workload : row.at.get(dimension);

/** Return the dimensions of a scenario's values, each with its values in order. */
function dimensionsOf(scenario) {
  if (!dimensions.has(scenario)) {
    const found = new Map();
    const seen = (dimension, value) => {
      if (!found.has(dimension)) found.set(dimension, new Set());
      found.get(dimension).add(value);
    };
    let last = null;
    for (const row of [...rowsOf(scenario)].reverse()) {   // oldest first
      if (row.at !== last) for (const [dimension, value] of row.at) seen(dimension, value);
      seen("workload", row.m.workload);
      last = row.at;
    }
    const ordered = new Map();
    for (const [dimension, values] of found) {
      const list = [...values];
      if (list.every(v => typeof v === "number" || v === null)) list.sort((a, b) => (a ?? -1) - (b ?? -1));
      else if (["kernel", "mdadm", "qemu", "lab", "host", "started"].includes(dimension)) {
        list.sort((a, b) => String(a ?? "").localeCompare(String(b ?? ""), "en", {numeric: true}));
      } else if (!(dimension in FACTS)) list.reverse();   // axes: as in the newest run
      ordered.set(dimension, list);
    }
    dimensions.set(scenario, ordered);
  }
  return dimensions.get(scenario);
}

/** Return the dimensions with several values: axes and workload first, then facts of the run. */
function differing(scenario) {
  const all = [...dimensionsOf(scenario)].filter(([, v]) => v.length > 1).map(([d]) => d);
  const last = d => d in FACTS || d === "started" || d === "scenario" || d === "cell";
  return [...all.filter(d => !last(d)), ...Object.keys(FACTS).filter(d => all.includes(d))];
}

const isAxis = d => !(d in FACTS) && !["workload", "scenario", "started", "cell"].includes(d);

/** Return values of all rows of a scenario, each once; remembered until rows are added. */
function once(scenario, what, of) {
  const key = `${scenario}\u0000\u0000${what}`;
  if (!found_.has(key)) found_.set(key, [...new Set(rowsOf(scenario).map(of))]);
  return found_.get(key);
}

const metricsOf = scenario => once(scenario, "metrics", r => r.m.metric);
const scenariosOf = () => once("", "scenarios", r => r.at.get("scenario"));

// ---- the address

/** Complete a view's choices, so that its address does not depend on defaults. */
function settled(given) {
  const s = {...given};
  if (!(s.view in VIEWS)) s.view = "explore";
  const scenarios = scenariosOf();
  if (!scenarios.includes(s.scenario) && !(s.view === "compare" && s.scenario === "")) s.scenario = scenarios[0] ?? "";
  const names = metricsOf(s.scenario), differ = differing(s.scenario), all = dimensionsOf(s.scenario);
  if (!names.includes(s.metric) && !(s.view === "compare" && ["", EVERY].includes(s.metric))) {
    s.metric = ["throughput", "iops", "seconds"].find(m => names.includes(m)) ?? names[0] ?? "";
  }
  const keep = (key, allowed, otherwise) => {
    if (s[key] === undefined || (s[key] && !allowed.includes(s[key]))) s[key] = (typeof otherwise === "function" ? otherwise() : otherwise) ?? "";
  };
  const axes = differ.filter(isAxis), size = d => all.get(d).length;
  const numeric = axes.filter(d => all.get(d).every(v => typeof v === "number" || v === null));
  const longest = list => [...list].sort((a, b) => size(b) - size(a))[0];
  const workload = differ.includes("workload") ? "workload" : "";
  const rest = (used, found) => {
    if (!others(s, used).length) return "";
    return panels(s, used, found) <= LINES ? "others" : used.includes("workload") ? "" : workload;
  };
  if (s.view === "explore") {
    const runs = (all.get("run") ?? []).length > 1;
    keep("x", [...differ, "started"], longest(numeric) ?? longest(axes) ?? (runs ? "started" : workload || "run"));
    keep("series", differ, longest(axes.filter(d => d !== s.x && size(d) <= LINES)) ?? "");
    keep("facet", ["others", ...differ], () => rest([s.x, s.series], rowsOf(s.scenario, s.metric)));
    keep("norm", all.get("cell") ?? [], "");
  } else if (s.view === "percentiles") {
    keep("series", differ, longest(axes.filter(d => size(d) <= LINES)) ?? "");
    keep("facet", ["others", ...differ], () => rest([s.series], rowsOf(s.scenario).filter(r => PERCENTILE.test(r.m.metric))));
    keep("way", ["read", "write", "trim"], "");
  } else if (s.view === "compare") {
    keep("by", differ, differ.includes("run") ? "run" : differ[0]);
    const values = (all.get(s.by) ?? []).map(v => text(s.by, v));
    const [a, b] = (s.by === "run" && lastTwo(s.scenario)) || values.slice(-2);
    keep("a", values, a);
    keep("b", values, b ?? a);
  }
  s.differs ??= "1";
  return s;
}

/** Return the newest run that has an earlier one of its scenario, after that one. */
function lastTwo(scenario) {
  const ids = new Map();   // of the newest runs, by scenario
  for (const {result: {run}} of [...site.runs].sort((x, y) => x.result.run.started < y.result.run.started ? 1 : -1)) {
    if (scenario && run.scenario !== scenario) continue;
    if (ids.has(run.scenario)) return [run.id, ids.get(run.scenario)];
    ids.set(run.scenario, run.id);
  }
  return null;
}

const USED = {
  explore: ["x", "series", "facet", "norm", "log"], history: [], percentiles: ["series", "facet", "way"],
  compare: ["by", "a", "b"],
};

function address(s) {
  const found = new URLSearchParams({view: s.view, scenario: s.scenario, metric: s.metric});
  for (const key of [...USED[s.view], "differs", "point"]) if (s[key] !== undefined && (s[key] || key !== "point")) found.set(key, s[key]);
  for (const key of Object.keys(s).filter(k => k.startsWith("only."))) for (const v of s[key]) found.append(key, v);
  return found.toString();
}

function fromAddress() {
  const found = {};
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (key.startsWith("only.")) (found[key] ??= []).push(value);
    else found[key] = value;
  }
  return found;
}

/** Change the view, and the address with it. */
function go(changes) {
  state = settled({...state, ...changes});
  for (const key of Object.keys(state)) if (state[key] === undefined) delete state[key];
  location.hash = address(state);
  render();
}

// ---- values of a view

/** Return the workload and the axes that tell values apart which agree in ``used``; remembered until rows are added. */
function others(s, used) {
  const names = differing(s.scenario).filter(d => (isAxis(d) || d === "workload") && !used.includes(d));
  const key = `${s.scenario}\u0000\u0000others ${used}`;
  if (!found_.has(key)) {
    const points = new Map(rowsOf(s.scenario).map(r => [`${r.cell.id}\u0000${r.m.workload}`, r])), kept = used.filter(d => isAxis(d) || d === "workload");
    const count = dims => new Set([...points.values()].map(r => JSON.stringify(dims.map(d => at(r, d) ?? null)))).size;
    let known = count(kept);
    const telling = [];
    for (const d of [...names.filter(n => n === "workload"), ...names.filter(n => n !== "workload")]) {
      const told = count([...kept, d]);
      if (told > known) { telling.push(d); kept.push(d); known = told; }
    }
    found_.set(key, telling);
  }
  return found_.get(key);
}

/** Return the panel of a row: a dimension's value, or those of all other axes. */
function panel(s, used) {
  if (s.facet !== "others") return by(s.facet);
  const rest = others(s, used), axes = rest.filter(d => d !== "workload"), name = `panel ${rest}`;
  return row => {
    let own = row.places.get(name);
    if (own === undefined) {
      own = axes.map(d => [d, text(d, at(row, d))]).filter(([, v]) => v !== "–" && v !== "default")
        .map(([d, v]) => /^\d/.test(v) || v === "none" ? `${heading(d)} ${v}` : v).join(", ");
      row.places.set(name, own);
    }
    return axes.length === rest.length ? own : [row.m.workload, own].filter(Boolean).join(", ");
  };
}

/** Return the number of panels of all other axes. */
const panels = (s, used, found) => new Set(found.map(panel({...s, facet: "others"}, used))).size;

/** Return these rows without those that the filters leave out. */
function kept(s, found) {
  const only = Object.entries(s).filter(([k]) => k.startsWith("only.")).map(([k, v]) => [k.slice(5), new Set(v)]);
  return only.length ? found.filter(row => only.every(([d, values]) => values.has(text(d, at(row, d))))) : found;
}

/** Divide each value by that of a cell in the same run, for the same workload. Its interval is common to all of them. */
function normalised(found, s) {
  const keyOf = r => `${r.at.get("run")}\u0000${r.m.workload}`;
  const base = new Map(rowsOf(s.scenario, s.metric).filter(r => r.at.get("cell") === s.norm).map(r => [keyOf(r), r]));
  return found.map(r => [r, base.get(keyOf(r))]).filter(([, b]) => b?.y).map(([r, b]) => {
    const by = value => value === null ? null : value / b.y, same = b.cell === r.cell;
    return {...r, y: r.y / b.y, low: same ? 1 : by(r.low), high: same ? 1 : by(r.high), base: b};
  });
}

/** Return a mark for each place of the chart: one value, or the median of several. */
function grouped(tagged) {
  const places = new Map();
  for (const {row, x, series, facet} of tagged) {
    const key = `${x}\u0000${series}\u0000${facet}`, place = places.get(key);
    if (place) place.rows.push(row);
    else places.set(key, {x, series, facet, rows: [row]});
  }
  return [...places.values()].map((place, n) => {
    const ys = place.rows.map(r => r.y), one = place.rows.length === 1;
    return {
      ...place, n, y: median(ys), count: ys.length,
      low: one ? place.rows[0].low : Math.min(...ys), high: one ? place.rows[0].high : Math.max(...ys),
    };
  });
}

const changesOf = s => (site.changes ?? []).filter(c => c.scenario === s.scenario && c.metric === s.metric);

// ---- charts

let look_ = null;   // colours and width of the window, until it changes

/** Return colours, and the width of a chart; reading them makes the browser lay out the page. */
function theme() {
  look_ ??= themeNow();
  return look_;
}

function themeNow() {
  const style = getComputedStyle(document.documentElement), of = name => style.getPropertyValue(name).trim();
  const ink = of("--ink"), muted = of("--muted"), grid = of("--grid");
  const dark = matchMedia("screen and (prefers-color-scheme: dark)").matches;
  const axis = {labelColor: ink, titleColor: muted, gridColor: grid, domainColor: muted, tickColor: muted, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 170};
  $("chart").hidden = false;   // it has a width only if it is shown
  return {
    wide: Math.max($("chart").clientWidth - 24, 240), colours: dark ? DARK : COLOURS, ink, muted, paper: of("--paper"),
    good: of("--holds"), bad: of("--refuted"), doubt: of("--doubt"),
    config: {
      background: null, aria: false, mark: {invalid: null}, font: "system-ui, 'DejaVu Sans', sans-serif", view: {stroke: null}, axis,
      header: {labelColor: ink, labelFontSize: 13, title: null},
      legend: {orient: "bottom", columns: 2, labelColor: ink, titleColor: muted, labelFontSize: 12, titleFontWeight: "normal", labelLimit: 280, symbolStrokeWidth: 3},
    },
  };
}

const format = unit => unit === "×" ? "format(datum.value, '~r') + ' ×'"
  : `${["B/s", "s", "B"].includes(unit) ? "replace(format(datum.value, '.3~s'), regexp('([a-zµ]*)$', 'i'), ' $1')" : "format(datum.value, '.3~s')"} + '${["B/s", "s", "B"].includes(unit) ? unit : unit === "1/s" ? "/s" : ""}'`;

/** Return ticks of a logarithmic axis: powers of ten, with 2 and 5 between few of them. */
function decades(own) {
  const ys = own.flatMap(m => [m.y, m.low, m.high]).filter(v => v > 0);
  const from = Math.floor(Math.log10(Math.min(...ys))), to = Math.ceil(Math.log10(Math.max(...ys)));
  const steps = to - from > 2 ? [1] : [1, 2, 5];
  return Array.from({length: Math.min(to - from, 30) + 1}, (_, n) => steps.map(k => k * 10 ** (from + n))).flat();
}

/** Return a specification of marks over x, in panels by facet. */
function specification(own, {xTitle, time, lines, seriesTitle, series, xs, facets, yTitle, unit, log, zero}) {
  const look = theme(), {wide} = look;
  const rows_ = Math.ceil(facets.length / Math.max(1, Math.floor(wide / 360)));
  const columns = facets.length > 1 ? Math.ceil(facets.length / rows_) : 1;
  const width = Math.max(150, Math.floor(wide / columns) - (columns > 1 ? 85 : 105));
  const x = time
    ? {field: "x", type: "temporal", title: "start of the run, UTC", scale: {type: "utc"}, axis: {grid: false, format: "%Y-%m-%d", tickCount: Math.max(2, Math.floor(width / 120)), labelOverlap: true}}
    : {field: "x", type: "nominal", sort: xs, title: xTitle, axis: {labelAngle: xs.join("").length * 8 > width ? -35 : 0, labelLimit: 130, grid: false}};
  const y = {field: "y", type: "quantitative", title: yTitle.split(/, (?=higher|lower)/), scale: log ? {type: "log"} : {zero}, axis: {labelExpr: format(unit), tickCount: 6, ...(log ? {values: decades(own)} : {})}};
  const colour = series.length > 0 && {
    field: "series", type: "nominal", title: seriesTitle,
    scale: {domain: series.map(one => one.name), range: series.map(one => look.colours[one.n % look.colours.length])},
    legend: {columns: Math.max(1, Math.floor(wide / (Math.max(...series.map(one => one.name.length)) * 7 + 40)))},
  };
  const shared = {x, ...(colour ? {color: colour} : {})};
  const crowded = new Set(own.map(m => `${m.x}\u0000${m.facet}`)).size < own.length;
  if (colour && !time && !lines && crowded && series.length < 9) shared.xOffset = {field: "series", type: "nominal", sort: series.map(one => one.name), scale: {paddingOuter: 1.5}};
  const plain = colour ? {} : {color: look.colours[0]};
  const layer = [
    {transform: [{filter: "isValid(datum.low)"}], mark: {type: "rule", strokeWidth: 2, opacity: .55, ...plain}, encoding: {...shared, y: {...y, field: "low"}, y2: {field: "high"}}},
    {mark: {type: "point", filled: true, opacity: 1, size: own.length > 400 ? 25 : 60, ...plain}, encoding: {...shared, ...(colour ? {shape: {field: "series", type: "nominal", title: seriesTitle, scale: {domain: series.map(one => one.name)}, legend: colour.legend}} : {}), y, tooltip: {field: "tip", type: "nominal"}}},
  ];
  if (time || lines) layer.splice(1, 0, {mark: {type: "line", strokeWidth: 1.5, ...plain}, encoding: {...shared, y}});
  if (time) layer.push({transform: [{filter: "datum.changed"}], mark: {type: "point", shape: "diamond", size: 260, strokeWidth: 2.5, filled: false, color: look.bad}, encoding: {x, y, tooltip: {field: "tip", type: "nominal"}}});
  const height = Math.max(180, Math.min(320, Math.round(width * .55)));
  const body = facets.length > 1
    ? {facet: {field: "facet", type: "nominal", sort: facets}, columns, spec: {width, height, layer}}
    : {width, height, layer};
  return {data: {name: "marks"}, ...body, config: {...look.config, header: {...look.config.header, labelLimit: width}}};
}

/** Draw a chart. With the specification of the last one, only its data is replaced. */
async function draw(spec, found, words) {
  marks = found;
  const data = found.map(mark => ({...mark, rows: undefined})), key = JSON.stringify(spec);
  const none = !found.length || !window.vegaEmbed;
  if ($("chart").hidden !== none) $("chart").hidden = none;
  $("chart").setAttribute("aria-label", words);
  if (!window.vegaEmbed || !found.length) return;
  if (drawn?.key === key) {
    drawn.view.data("marks", data);
    await drawn.view.runAsync();
    return;
  }
  const mine = drawn = {key, view: null};
  const place = h("div");
  const made = await window.vegaEmbed(place, {...spec, data: {name: "marks", values: data}}, {
    renderer: "canvas", ast: true, logLevel: 1 /* errors */, actions: {export: true, source: false, compiled: false, editor: false},
    downloadFileName: "lab", tooltip: {theme: "custom"},
  });
  if (drawn !== mine) return made.finalize();
  mine.view = made.view;
  mine.view.addEventListener("click", (_event, item) => {
    const mark = item?.datum && marks[item.datum.n];
    if (mark) mark.rows.length === 1 ? go({point: pointOf(mark.rows[0])}) : listOf(mark);
  });
  $("chart").querySelector(":scope > div")?.remove();
  $("chart").replaceChildren(place);
  place.querySelector("canvas")?.setAttribute("aria-hidden", "true");   // the tables have its values
  place.querySelector("summary")?.setAttribute("aria-label", "Save the chart");
}

// ---- tables

/** Return a table; columns: {name, of, number, sort}. A cell is a text or an element. */
function table(caption, columns, lines, all = false) {
  const body = h("tbody");
  const fill = most => body.replaceChildren(...lines.slice(0, most).map(line => h("tr", {}, columns.map(c => {
    const value = c.of(line);
    return h(c.head ? "th" : "td", {className: [c.number ? "number" : "", c.style?.(line) ?? ""].join(" ").trim(), ...(c.head ? {scope: "row"} : {})}, value ?? "");
  }))));
  fill(all ? lines.length : ROWS);
  const heads = columns.map(c => {
    const own = sorted && sorted.column === c.name;
    const press = () => { sorted = {column: c.name, down: own ? !sorted.down : Boolean(c.number)}; render(); };
    return h("th", {scope: "col", className: c.number ? "number" : "", ...(own && c.sort ? {"aria-sort": sorted.down ? "descending" : "ascending"} : {})},
      c.sort ? h("button", {type: "button", onclick: press, title: "sort"}, c.name) : c.name || h("span", {className: "unseen"}, "details"));
  });
  const box = h("div", {className: "box", tabIndex: 0, role: "region", ariaLabel: caption},
    h("table", {}, h("caption", {className: "unseen"}, caption), h("thead", {}, h("tr", {}, heads)), body));
  const left = lines.length - ROWS;
  const more = left > 0 && !all
    ? h("button", {type: "button", onclick: event => { fill(lines.length); event.target.remove(); }}, `Show the other ${plural(left, "row")}`) : null;
  return h("div", {}, h("p", {className: "small"}, caption), box, more);
}

function inOrder(lines, columns) {
  const column = sorted && columns.find(c => c.name === sorted.column && c.sort);
  if (!column) return lines;
  const sign = sorted.down ? -1 : 1;
  return [...lines].sort((a, b) => {
    const one = column.sort(a), other = column.sort(b);
    return sign * (typeof one === "number" && typeof other === "number" ? one - other
      : String(one ?? "").localeCompare(String(other ?? ""), "en", {numeric: true}));
  });
}

const interval = (low, high, unit) => low === null || low === undefined ? "not known"
  : low === high ? "exact" : `${show(low, unit)} – ${show(high, unit)}`;

/** Return the table of single values. */
function valuesTable(found, s, unit) {
  const differ = differing(s.scenario), every = s.differs !== "1";
  const shown = every ? [...dimensionsOf(s.scenario).keys()].filter(d => d !== "scenario" && d !== "cell") : differ;
  const several = d => every || varies(found, d);
  const columns = [
    ...shown.filter(d => ["workload", "run"].includes(d) || several(d)).map(d => ({
      name: heading(d), of: r => d === "run" && r.run.report ? h("a", {href: r.run.report}, at(r, d)) : text(d, at(r, d)), sort: r => at(r, d), number: typeof at(found[0] ?? {at: new Map(), m: {}}, d) === "number",
    })),
    {name: s.norm && s.view === "explore" ? "ratio" : "value", number: true, of: r => show(r.y, unit) + (r.doubts.length ? " ?" : ""), sort: r => r.y},
    {name: "95 % interval", number: true, of: r => interval(r.low, r.high, unit)},
    {name: "trials", number: true, of: r => String(r.m.values.length), sort: r => r.m.values.length},
    {name: "", of: r => h("button", {type: "button", onclick: () => go({point: pointOf(r)}), ariaLabel: `Details: ${r.at.get("cell")}, ${r.m.workload}, ${r.at.get("run")}`}, "details")},
  ];
  return table(`${plural(found.length, "value")}. ?: doubtful, the details say why.`, columns, inOrder(found, columns));
}

// ---- one point

const pointOf = r => JSON.stringify([r.at.get("run"), r.cell.id, r.m.workload, r.m.metric]);

function facts(pairs) {
  return h("dl", {}, pairs.filter(([, value]) => value !== "" && value !== undefined && value !== null)
    .flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function dialog(title, ...children) {
  const close = h("button", {type: "button", onclick: () => $("point").close()}, "Close");
  $("point").replaceChildren(h("h2", {id: "point-title"}, title), ...children.filter(Boolean), h("p", {}, close));
  if (!$("point").open) $("point").showModal();
}

function listOf(mark) {
  const unit = state.norm ? "×" : metricOf(mark.rows[0].m.metric).unit;
  dialog(`${plural(mark.rows.length, "value")} in this mark`,
    h("p", {}, `The mark is their median: ${show(mark.y, unit)}.`), valuesTable(mark.rows, state, unit));
}

function details(r) {
  const {run, cell, own, m} = r, {unit, words, better} = metricOf(m.metric), result = run.result;
  const link = (url, words) => url ? h("a", {href: url}, words) : null;
  const predicted = (cell.predictions ?? []).find(p => p.workload === m.workload && p.metric === m.metric);
  const links = [link(own.report, "report of this cell"), link(own.output, "commands and raw output"), link(run.scenario, "scenario file"), link(run.report, "report of the run")];
  const told = h("span", {role: "status"});
  const command = own.command && [
    h("h3", {}, "Run this cell again"), h("pre", {tabIndex: 0}, own.command),
    h("p", {className: "row"}, h("button", {type: "button", id: "copy", onclick: async () => { told.textContent = await copied(own.command) ? "Copied." : "The browser refuses: select the text and copy it."; }}, "Copy the command"), told),
  ];
  dialog(`${m.workload}, ${words}: ${show(m.median, unit)}`,
    facts([
      ["scenario", result.run.scenario], ["cell", r.at.get("cell")], ["run", result.run.id],
      ["median", `${m.median}${unit === "1" ? "" : unit === "1/s" ? "/s" : ` ${unit}`}`], ["better", better],
      ["95 % interval", m.no_seed_changes_it ? "none needed: no seed changes this value" : interval(r.low, r.high, unit)],
      [m.values.length === 1 ? "trial" : "trials", m.values.map(v => show(v, unit)).join(", ")],
      ["theory", predicted ? `${show(predicted.value, unit)} (measured ${percent(m.median / predicted.value - 1)})` : ""],
      ["doubtful", r.doubts.map(c => c.detail).join("; ")],
      ...["started", ...Object.keys(FACTS).filter(f => f !== "run")].map(f => [heading(f), r.at.get(f) ? text(f, r.at.get(f)) : ""]),
    ]),
    links.some(Boolean) ? h("p", {className: "row"}, links) : h("p", {}, coded("Added in this window: without its report and commands. `lab site DIR --add FILE` makes a site with those of a bundle.")),
    ...(command || []));
}

/** Copy a text; pages from files have no clipboard in some browsers, and select the text. */
async function copied(words) {
  try {
    await navigator.clipboard.writeText(words);
    return true;
  } catch {
    const area = h("textarea", {value: words, ariaLabel: "command"});
    $("point").append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// ---- views

function question(scenario) {
  const run = site.runs.find(one => one.result.run.scenario === scenario);
  const answer = run?.result.answer;
  if (!answer) return [];
  const verdicts = {};
  for (const claim of run.result.claims) verdicts[claim.verdict] = (verdicts[claim.verdict] ?? 0) + 1;
  const counts = Object.entries(verdicts).map(([v, n]) => `${n} ${v.replace("_", " ")}`).join(", ");
  return [
    answer.question ? h("p", {className: "question"}, answer.question) : null,
    h("p", {}, coded((answer.sentences ?? []).join(" ")), " ",
      h("span", {className: "small"}, `Newest run${counts ? `, claims: ${counts}` : ""}. `, run.report ? h("a", {href: run.report}, "Report") : "")),
  ].filter(Boolean);
}

/** Say which facts are the same in all values, so that only the others take space. */
function same(s) {
  const all = [...dimensionsOf(s.scenario)].filter(([d, v]) => v.length === 1 && !["scenario", "cell", "started"].includes(d) && v[0] !== undefined && v[0] !== "");
  return all.length ? h("p", {className: "small"}, `The same in all values: ${all.map(([d, v]) => `${heading(d)} ${text(d, v[0])}`).join(", ")}.`) : null;
}

const higher = better => better === "higher" ? "higher is better ↑" : better === "lower" ? "lower is better ↓" : "";

/** Return series or panels in their order, and what is left out. */
function limited(there, order, most = LINES) {
  const names = order.filter(name => there.has(name));
  return [names.slice(0, most).map(name => ({name, n: order.indexOf(name)})), names.slice(most)];
}

function plot(found, s, {x, time = false, lines, series, seriesTitle, facet, orders, xTitle, yTitle, unit, log, zero, changed}) {
  const tagged = found.map(row => ({row, x: x(row), series: series(row), facet: facet(row)}));
  const all = [...new Set(tagged.map(t => t.facet))];
  const [colours, dropped] = limited(new Set(tagged.map(t => t.series)), orders.series);
  const [shown, cut] = limited(new Set(all), orders.facet ?? all.sort((a, b) => a.localeCompare(b, "en", {numeric: true})));
  const names = new Set(colours.map(c => c.name)), places = new Set(shown.map(p => p.name));
  let own = grouped(tagged.filter(t => names.has(t.series) && places.has(t.facet) && (!log || t.row.y > 0)));
  const order = new Map(orders.x.map((v, n) => [v, n]));
  own.sort((a, b) => (order.get(a.x) ?? 0) - (order.get(b.x) ?? 0));
  const over = own.length - MARKS;
  own = own.slice(0, MARKS).map((mark, n) => {
    const change = changed?.(mark);
    const where = [mark.facet, mark.series, time ? text("started", mark.x) : mark.x].filter(Boolean).join(", ");
    const bar = mark.low === null || mark.low === mark.high ? "" : mark.count > 1 ? ` (${show(mark.low, unit)} to ${show(mark.high, unit)})` : ` (95 %: ${show(mark.low, unit)} to ${show(mark.high, unit)})`;
    const many = mark.count > 1 ? `, median of ${mark.count}` : "";
    return {...mark, n, changed: Boolean(change), tip: `${where}: ${show(mark.y, unit)}${bar}${many}${change ? `; change point ${percent(change.change)}` : ""}`};
  });
  if (log) for (const mark of own) if (mark.low !== null && mark.low <= 0) mark.low = mark.high = null;
  const several = own.some(mark => mark.count > 1);
  const said = [];
  if (several) {
    const used = [s.x, s.series, s.facet, ...(s.facet === "others" ? differing(s.scenario).filter(d => isAxis(d) || d === "workload") : [])];
    const hidden = differing(s.scenario).filter(d => !used.includes(d) && varies(found, d));
    said.push(`A mark with several values is their median, and its bar reaches from the lowest to the highest; they differ in: ${hidden.map(heading).join(", ")}.`);
  }
  if (own.some(mark => mark.count === 1 && mark.low !== null && mark.low !== mark.high)) said.push("The bar of a single value is its 95 % interval.");
  if (found.some(r => r.low === null)) said.push("Values without a bar have no known interval: one trial, noise unknown.");
  if (dropped.length) said.push(`${dropped.length} of ${dropped.length + colours.length} lines are not drawn: filter, or choose another series.`);
  if (cut.length) said.push(`${cut.length} of ${cut.length + shown.length} panels are not drawn.`);
  if (over > 0) said.push(`${plural(over, "mark")} are not drawn: filter.`);
  const titled = colours.length > 1 || (colours.length === 1 && colours[0].name);
  const spec = () => specification(own, {
    xTitle, time, lines, seriesTitle, series: titled ? colours : [], xs: orders.x.filter(v => own.some(m => m.x === v)),
    facets: shown.map(p => p.name), yTitle, unit, log, zero,
  });
  return {own, spec, said, words: `${yTitle} over ${time ? "time" : xTitle}. The tables below have its values.`};
}

const names = (s, d) => (d ? (dimensionsOf(s.scenario).get(d) ?? []) : [undefined]).map(v => d ? text(d, v) : "");
const by = d => d ? row => text(d, at(row, d)) : () => "";

function explore(s) {
  const metric = metricOf(s.metric), unit = s.norm ? "×" : metric.unit;
  let found = kept(s, rowsOf(s.scenario, s.metric));
  const undivided = found, before = found.length;
  if (s.norm) found = normalised(found, s);
  const time = s.x === "started", numeric = (dimensionsOf(s.scenario).get(s.x) ?? []).every(v => typeof v === "number" || v === null);
  const made = plot(found, s, {
    x: time ? r => r.at.get("started") : by(s.x), time, lines: numeric, series: by(s.series), facet: panel(s, [s.x, s.series]), seriesTitle: heading(s.series || "run"),
    orders: {x: time ? dimensionsOf(s.scenario).get("started") ?? [] : names(s, s.x), series: names(s, s.series), facet: s.facet === "others" ? null : names(s, s.facet)},
    xTitle: heading(s.x), yTitle: `${metric.words}${s.norm ? ", ratio" : ""}, ${higher(metric.better)}`,
    unit, log: s.log === "1", zero: !time,
  });
  const lost = before - found.length;
  return {
    ...made, found,
    said: [...made.said, ...(lost ? [`${plural(lost, "value")} left out: their run has no value of the cell to divide by.`] : []), ...(s.norm && found.length ? [`1 is the value of ${s.norm} in the same run, ${doubt(found)}.`] : [])],
    tables: () => [ranking(undivided, metric), wins(undivided, s, metric), h("h3", {}, "Values"), same(s), valuesTable(found, s, unit)],
  };
}

/** Return the place of a value without a dimension: what must be equal for a comparison. */
function placeWithout(r, d) {
  if (r.side?.d === d) return r.side.key;
  let place = r.places.get(d);
  if (!place) {
    const within = isAxis(d) || d === "workload" ? r.at.get("run") : d === "clock" || d === "run" ? "" : r.at.get("clock");
    place = JSON.stringify([r.at.get("scenario"), r.axes.filter(([a]) => a !== d), within]);
    r.places.set(d, place);
  }
  r.side = {d, key: `${place}\u0000${r.m.metric}\u0000${d === "workload" ? "" : r.m.workload}`};
  return r.side.key;
}

/** Return the values of each place side by side; several values of one side become their median. */
function sides(found, d) {
  const places = new Map();
  for (const r of found) {
    const key = placeWithout(r, d), name = text(d, at(r, d));
    if (!places.has(key)) places.set(key, new Map());
    const place = places.get(key);
    if (!place.has(name)) place.set(name, []);
    place.get(name).push(r);
  }
  const joined = list => list.length === 1 ? {...list[0], rows: list} : {
    ...list[0], rows: list, y: median(list.map(r => r.y)), low: Math.min(...list.map(r => r.low ?? r.y)), high: Math.max(...list.map(r => r.high ?? r.y)),
  };
  return [...places.values()].map(place => new Map([...place].map(([name, list]) => [name, joined(list)])));
}

/** Say how well the values are known by which all are divided. */
function doubt(found) {
  const bases = found.map(r => r.base);
  if (bases.some(b => b.low === null)) return "whose interval is not known";
  const most = Math.max(...bases.map(b => Math.max(b.high - b.y, b.y - b.low) / b.y));
  return most ? `known within ${(most * 100).toFixed(1)} %, which is common to all` : "which is exact";
}

/** Return all cells in order: the geometric mean, over runs and workloads, of the ratio to the best cell. */
function ranking(found, metric) {
  if (!metric.better) return null;
  const groups = new Map(), cells = new Map(), lower = metric.better === "lower";
  for (const r of found.filter(r => r.y > 0)) {
    const key = `${r.at.get("run")}\u0000${r.m.workload}`;
    groups.set(key, [...groups.get(key) ?? [], r]);
  }
  for (const group of groups.values()) {
    const best = (lower ? Math.min : Math.max)(...group.map(r => r.y));
    for (const r of group) {
      const name = r.at.get("cell");
      if (!cells.has(name)) cells.set(name, {logs: [], unknown: 0});
      const c = cells.get(name);
      c.logs.push(Math.log(lower ? best / r.y : r.y / best));
      c.unknown += r.low === null;
    }
  }
  if (cells.size < 2) return null;
  const mean = c => Math.exp(c.logs.reduce((a, b) => a + b, 0) / c.logs.length);
  const lines = [...cells].sort(([, a], [, b]) => mean(b) - mean(a)), unknown = lines.some(([, c]) => c.unknown);
  return h("div", {}, h("h3", {}, "All cells, the best first"), table(
    `Geometric mean of the ratio to the best cell of the same run and workload.${unknown ? " Some values have no interval: small differences may be chance." : ""}`, [
      {name: "cell", of: ([name]) => name, head: true},
      {name: "mean ratio to the best", number: true, of: ([, c]) => show(mean(c), "×")},
      {name: "values", number: true, of: ([, c]) => String(c.logs.length)},
    ], lines));
}

/** Return how often each value of the series is best; overlapping intervals are a tie. */
function wins(found, s, metric) {
  const d = s.series || s.x;
  if (!d || d === "started" || !metric.better) return null;
  const sign = metric.better === "higher" ? 1 : -1, counts = new Map();
  let groups = 0, undecided = 0;
  for (const place of sides(found, d)) {
    if (place.size < 2) continue;
    const list = [...place].sort(([, a], [, b]) => sign * (b.y - a.y));
    const best = list[0][1];
    if (list.some(([, r]) => r.low === null)) { undecided += 1; continue; }
    groups += 1;
    const tied = list.filter(([, r]) => sign > 0 ? r.high >= best.low : r.low <= best.high);
    for (const [name, r] of list) {
      if (!counts.has(name)) counts.set(name, {wins: 0, ties: 0, losses: 0, logs: []});
      const c = counts.get(name), among = tied.some(([n]) => n === name);
      c[among ? tied.length === 1 ? "wins" : "ties" : "losses"] += 1;
      if (r.y > 0 && best.y > 0) c.logs.push(Math.log(r.y / best.y));
    }
  }
  if (!groups) return undecided ? h("p", {className: "small"}, `Wins and losses of ${heading(d)}: not known, since values have no interval. More trials give one.`) : null;
  const order = names(s, d), lines = [...counts].sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
  const mean = c => c.logs.length ? Math.exp(c.logs.reduce((a, b) => a + b, 0) / c.logs.length) : null;
  return h("div", {}, h("h3", {}, `Wins and losses of ${heading(d)}`), table(
    `In ${plural(groups, "group")} of values that differ only in ${heading(d)}. A win: alone best, by more than the intervals. A tie: among the best.`
    + (undecided ? ` ${plural(undecided, "group")} left out: no interval.` : ""), [
      {name: heading(d), of: ([name]) => name, head: true}, ...["wins", "ties", "losses"].map(key => ({name: key, number: true, of: ([, c]) => String(c[key])})),
      {name: "mean ratio to the best", number: true, of: ([, c]) => mean(c) === null ? "" : show(mean(c), "×")},
    ], lines));
}

function history(s) {
  const metric = metricOf(s.metric), several = differing(s.scenario).includes("workload");
  const branches = differing(s.scenario).includes("branch");
  const line = r => [several ? r.m.workload : "", r.at.get("cell"), branches ? r.at.get("branch") ?? "no branch" : ""].filter(Boolean).join(", ");
  const found = kept(s, rowsOf(s.scenario, s.metric)), changes = changesOf(s);
  const starred = new Map(changes.map(c => [JSON.stringify([c.run, c.cell, c.workload]), c]));
  const changeOf = r => starred.get(JSON.stringify([r.at.get("run"), r.cell.id, r.m.workload]));
  const moving = new Set(found.filter(changeOf).map(line)), all = [...new Set(found.map(line))];
  const made = plot(found, {...s, x: "started", series: "run", facet: ""}, {
    x: r => r.at.get("started"), time: true, series: line, facet: () => "", seriesTitle: "cell",
    orders: {x: dimensionsOf(s.scenario).get("started") ?? [], series: [...all.filter(l => moving.has(l)), ...all.filter(l => !moving.has(l))], facet: [""]},
    xTitle: "time", yTitle: `${metric.words}, ${higher(metric.better)}`, unit: metric.unit, log: false, zero: false,
    changed: mark => mark.rows.map(changeOf).find(Boolean),
  });
  return {...made, found, tables: () => [changeTable(), h("h3", {}, "Values"), same(s), valuesTable(found, s, metric.unit)]};
}

function changeTable() {
  const lines = [...(site.changes ?? [])].reverse();
  const title = h("h3", {}, "Change points");
  if (!lines.length) return h("div", {}, title, h("p", {}, "No value of these runs has changed by more than noise. A series needs runs before and after the change; the guide to results says how many."));
  const labels = new Map(rows.map(r => [JSON.stringify([r.at.get("scenario"), r.cell.id]), r.at.get("cell")]));
  const label = c => labels.get(JSON.stringify([c.scenario, c.cell])) ?? c.cell;
  const reports = new Map(site.runs.map(one => [one.result.run.id, one.report]));
  const better = c => { const b = metricOf(c.metric).better; return b ? (c.change > 0) === (b === "higher") ? "better" : "worse" : ""; };
  return h("div", {}, title, table("Of all scenarios and metrics but counters of the disks, newest first.", [
    {name: "first run after it", of: c => reports.get(c.run) ? h("a", {href: reports.get(c.run)}, c.run) : c.run, head: true}, {name: "scenario", of: c => c.scenario}, {name: "cell", of: label},
    {name: "value", of: c => `${c.workload}, ${metricOf(c.metric).words}`},
    {name: "before", number: true, of: c => show(c.before, metricOf(c.metric).unit)}, {name: "after", number: true, of: c => show(c.after, metricOf(c.metric).unit)},
    {name: "change", number: true, of: c => `${percent(c.change)} ${better(c)}`, style: better},
    {name: "", of: c => h("button", {type: "button", ariaLabel: `Show ${c.scenario}, ${label(c)}, ${c.metric}`, onclick: () => go({...cleared(state), scenario: c.scenario, metric: c.metric, "only.cell": [label(c)]})}, "show")},
  ], lines));
}

function percentiles(s) {
  const part = r => PERCENTILE.exec(r.m.metric);
  const found = kept(s, rowsOf(s.scenario)).filter(r => { const p = part(r); return p && (p[1] ?? "") === s.way; });
  const label = r => { const p = part(r); return p[3] ? "max" : `p${p[2].replace("_", ".")}`; };
  const order = [...new Set(found.map(label))].sort((a, b) => (a === "max" ? 101 : +a.slice(1)) - (b === "max" ? 101 : +b.slice(1)));
  const made = plot(found, {...s, x: "percentile"}, {
    x: label, lines: true, series: by(s.series), facet: panel(s, [s.x, s.series]), seriesTitle: heading(s.series || "run"),
    orders: {x: order, series: names(s, s.series), facet: s.facet === "others" ? null : names(s, s.facet)}, xTitle: "percentile of all requests",
    yTitle: "completion latency, lower is better ↓, log scale", unit: "s", log: true, zero: false,
  });
  const none = found.length ? [] : ["No run of this scenario measured latency percentiles: only fio's workloads do."];
  return {...made, found, said: [...none, ...made.said], tables: () => found.length ? [h("h3", {}, "Values"), same(s), percentileTable(found, s, label, order)] : []};
}

function percentileTable(found, s, label, order) {
  const lines = new Map();
  for (const r of found) {
    const key = JSON.stringify([r.at.get("run"), r.cell.id, r.m.workload]);
    if (!lines.has(key)) lines.set(key, {r, of: new Map()});
    lines.get(key).of.set(label(r), r);
  }
  const several = differing(s.scenario).filter(d => varies(found, d));
  const columns = [
    ...several.map(d => ({name: heading(d), of: l => text(d, at(l.r, d)), sort: l => at(l.r, d)})),
    ...order.map(p => ({name: p, number: true, of: l => show(l.of.get(p)?.y, "s"), sort: l => l.of.get(p)?.y ?? Infinity})),
    {name: "", of: l => h("button", {type: "button", ariaLabel: `Details: ${l.r.at.get("cell")}, ${l.r.m.workload}, ${l.r.at.get("run")}`, onclick: () => go({point: pointOf(l.r)})}, "details")},
  ];
  return table(`${plural(lines.size, "workload")}. A percentile without a value had too few requests.`, columns, inOrder([...lines.values()], columns));
}

function compare(s) {
  const sided = kept(s, rowsOf(s.scenario, s.metric === EVERY ? "" : s.metric)).filter(r => [s.a, s.b].includes(text(s.by, at(r, s.by))));
  const found = s.metric ? sided : mainly(sided);
  const pairs = sides(found, s.by).filter(p => p.has(s.a) && p.has(s.b)).map(p => compared(p.get(s.a), p.get(s.b)));
  const counts = {};
  for (const p of pairs) counts[p.verdict] = (counts[p.verdict] ?? 0) + 1;
  const size = p => Math.abs(Math.log(p.b.y / p.a.y)) || 0;
  const gains = pairs.filter(p => p.gain > -1 && Number.isFinite(p.gain)).map(p => Math.log(1 + p.gain));
  const mean = gains.length ? Math.exp(gains.reduce((a, b) => a + b, 0) / gains.length) - 1 : null;
  const shown = pairs.filter(p => s.differs !== "1" || ["better", "worse", "changed"].includes(p.verdict)).sort((x, y) => size(y) - size(x));
  const order = ["better", "worse", "changed", "same", "unclear", "not known"];
  const lead = [
    s.a === s.b ? "Both sides are the same: choose another one."
      : pairs.length ? `${s.b} against ${s.a}: of ${plural(pairs.length, "common value")}, ${order.filter(v => counts[v]).map(v => `${counts[v]} ${v}`).join(", ")}.`
        + (mean === null || Math.abs(mean) < .0005 ? "" : ` In the geometric mean ${percent(mean)}, ${mean > 0 ? "better" : "worse"}.`)
      : `${s.a} and ${s.b} have no value in common. Values are paired by scenario, workload, metric and all axes.`,
  ];
  const said = [];
  if (pairs.length) said.push(`Same: less than ${SMALL * 100} % with the intervals. Unclear: the intervals could hide more. Not known: a value has no interval.`);
  if (s.by === "run" && pairs.length) said.push(`\`lab results compare ${s.a} ${s.b}\` has one confidence for the whole comparison.`);
  const look = theme(), top = shown.filter(p => Number.isFinite(p.change)).slice(0, 30);
  const varied = of => new Set(top.map(of)).size > 1;
  const parts = [p => p.b.at.get("scenario"), p => p.cell, p => p.b.m.workload, p => metricOf(p.b.m.metric).words].filter((of, n) => n === 1 || varied(of));
  const short = p => parts.map(of => of(p)).join(", ");
  const own = top.map((p, n) => ({n, name: short(p), y: p.gain ?? p.change, ...sidesOf(p), verdict: p.verdict, rows: [p.b], tip: `${p.name}: ${percent(p.change)}`}));
  const {wide} = look, label = Math.min(330, Math.round(wide * .45));
  const x = {type: "quantitative", title: `${s.b} against ${s.a}: worse ← 0 → better`, axis: {format: "+~%", labelOverlap: true, tickCount: Math.max(2, Math.floor((wide - label) / 80))}};
  const y = {field: "name", type: "nominal", sort: own.map(m => m.name), title: null, axis: {labelLimit: label, ...(wide < 560 ? {labelExpr: "split(datum.label, ', ')"} : {})}};
  const step = wide < 560 ? 14 * Math.max(1, ...own.map(m => m.name.split(", ").length)) + 10 : 22;
  const verdicts = ["better", "worse", "changed", "same", "unclear", "not known"].filter(v => own.some(m => m.verdict === v));
  const tone = {better: look.good, worse: look.bad, changed: look.colours[0], same: look.muted, unclear: look.doubt, "not known": look.doubt};
  const colour = {field: "verdict", type: "nominal", title: null, scale: {domain: verdicts, range: verdicts.map(v => tone[v])}};
  const spec = () => ({
    data: {name: "marks"}, width: Math.max(120, wide - label - 30), height: {step}, config: look.config,
    layer: [
      {mark: {type: "rule", color: look.muted}, encoding: {x: {datum: 0, type: "quantitative"}}},
      {transform: [{filter: "isValid(datum.low)"}], mark: {type: "rule", strokeWidth: 2}, encoding: {x: {...x, field: "low"}, x2: {field: "high"}, y, color: colour}},
      {mark: {type: "point", filled: true, size: 70, opacity: 1}, encoding: {x: {...x, field: "y"}, y, color: colour, shape: {field: "verdict", type: "nominal", title: null, scale: {domain: verdicts}}, tooltip: {field: "tip", type: "nominal"}}},
    ],
  });
  const several = d => new Set(shown.map(p => d(p))).size > 1;
  const columns = [
    ...(several(p => p.b.at.get("scenario")) ? [{name: "scenario", of: p => p.b.at.get("scenario"), sort: p => p.b.at.get("scenario")}] : []),
    {name: "cell", of: p => p.cell, sort: p => p.cell}, {name: "workload", of: p => p.b.m.workload, sort: p => p.b.m.workload},
    {name: "metric", of: p => metricOf(p.b.m.metric).words, sort: p => p.b.m.metric},
    {name: "A", number: true, of: p => show(p.a.y, metricOf(p.a.m.metric).unit)}, {name: "B", number: true, of: p => show(p.b.y, metricOf(p.b.m.metric).unit)},
    {name: "change", number: true, of: p => Number.isFinite(p.change) ? percent(p.change) : "", sort: p => p.change},
    {name: "interval", number: true, of: p => p.low === null || !Number.isFinite(p.low) ? "not known" : `${percent(p.low)} to ${percent(p.high)}`},
    {name: "verdict", of: p => p.verdict, sort: p => p.verdict, style: p => p.verdict},
    {name: "", of: p => h("button", {type: "button", ariaLabel: `Details: ${p.name}`, onclick: () => go({point: pointOf(p.b)})}, "details")},
  ];
  return {
    own, spec, lead, said: top.length < shown.length ? [...said, `The chart has the ${top.length} largest changes.`] : said, found: shown,
    words: `Changes of ${s.b} against ${s.a}. The table below has its values.`,
    tables: () => [h("h3", {}, "What differs otherwise"), otherwise(found, s), h("h3", {}, s.differs === "1" ? "Values that differ" : "All values"),
      shown.length ? table(`A: ${s.a}; B: ${s.b}`, columns, inOrder(shown, columns)) : h("p", {}, "None.")],
  };
}

function compared(a, b) {
  const change = b.y / a.y - 1, {better} = metricOf(b.m.metric);
  const known = a.low !== null && b.low !== null && a.low > 0 && a.high > 0;
  const low = known ? b.low / a.high - 1 : null, high = known ? b.high / a.low - 1 : null;
  const cell = b.at.get("cell"), name = `${cell}, ${b.m.workload}, ${metricOf(b.m.metric).words}`;
  let verdict = "not known";
  if (a.y === b.y && known) verdict = "same";
  else if (known) {
    if (Math.max(Math.abs(low), Math.abs(high)) < SMALL) verdict = "same";
    else if (low > 0 || high < 0) verdict = !better ? "changed" : (change > 0) === (better === "higher") ? "better" : "worse";
    else verdict = "unclear";
  }
  const gain = !better ? null : better === "higher" ? change : a.y / b.y - 1;
  return {a, b, change, gain, low, high, verdict, cell, name};
}

/** Return the interval of a pair on the axis of the chart, where right is better. */
const sidesOf = p => p.low === null || metricOf(p.b.m.metric).better !== "lower" ? {low: p.low, high: p.high}
  : {low: 1 / (1 + p.high) - 1, high: 1 / (1 + p.low) - 1};

/** Keep one metric of each workload in each cell: IOPS of small requests, or else throughput, or else the time. */
function mainly(found) {
  const SPEEDS = ["throughput", "iops", "seconds"], own = new Map();
  const keyOf = r => `${r.at.get("run")}\u0000${r.cell.id}\u0000${r.m.workload}`;
  for (const r of found) own.set(keyOf(r), {...own.get(keyOf(r)), [r.m.metric]: r.y});
  const chosen = new Map([...own].map(([key, m]) => [key, m.iops && !(m.throughput >= SMALL_REQUEST * m.iops) ? "iops" : SPEEDS.find(n => n in m)]));
  return found.filter(r => !chosen.get(keyOf(r)) || chosen.get(keyOf(r)) === r.m.metric);
}

/** Say in which facts the two sides differ besides the one that was chosen. */
function otherwise(found, s) {
  const side = name => found.filter(r => text(s.by, at(r, s.by)) === name);
  const values = (list, d) => {
    const all = [...new Set(list.map(r => text(d, at(r, d))))].sort();
    return all.length > 3 ? `${all[0]} and ${all.length - 1} more` : all.join(", ");
  };
  const [a, b] = [side(s.a), side(s.b)];
  const lines = Object.keys(FACTS).filter(d => d !== s.by).map(d => [heading(d), values(a, d), values(b, d)]).filter(([, x, y]) => x !== y);
  return lines.length ? table("Facts of the two sides", [{name: "fact", of: l => l[0], head: true}, {name: "A", of: l => l[1]}, {name: "B", of: l => l[2]}], lines)
    : h("p", {}, "No other fact of the environment.");
}

const SHOW = {explore, compare, history, percentiles};

// ---- controls

function choice(key, label, options, current, wide = false) {
  const select = h("select", {id: `c-${key}`, onchange: event => go(chosen(key, event.target.value))},
    options.map(([value, words]) => h("option", {value, selected: value === current}, words)));
  return h("label", {className: wide ? "wide" : ""}, label, select);
}

/** Return the choices of a view without filters and without those that depend on the scenario. */
const cleared = s => Object.fromEntries(Object.keys(s).filter(k => !["view", "differs"].includes(k)).map(k => [k, undefined]));

function chosen(key, value) {
  if (key === "scenario") return {...cleared(state), scenario: value, metric: state.metric};
  if (key === "by") return {by: value, a: undefined, b: undefined};
  return {[key]: value, point: undefined};
}

let built = "";
function controls(s) {
  const differ = differing(s.scenario), key = JSON.stringify([s.view, s.scenario, s.by, rows.length, s.view === "compare" ? "" : s.metric]);
  if (key !== built) {
    built = key;
    const scenarios = scenariosOf().map(n => [n, n]);
    const metrics = metricsOf(s.scenario).map(m => [m, metricOf(m).words]);
    const dims = list => list.map(d => [d, heading(d)]);
    const none = [["", "none"]];
    const parts = [choice("scenario", "Scenario", s.view === "compare" ? [["", "all"], ...scenarios] : scenarios, s.scenario)];
    if (s.view !== "percentiles") parts.push(choice("metric", "Metric", s.view === "compare" ? [["", "one of each workload"], [EVERY, "all"], ...metrics] : metrics, s.metric));
    if (s.view === "explore") {
      parts.push(choice("x", "Along x", dims([...differ, "started"]), s.x), choice("series", "Series (colour)", [...none, ...dims(differ)], s.series),
        choice("facet", "Panels", [...none, ["others", "all other axes"], ...dims(differ)], s.facet),
        choice("norm", "Divide by the value of", [["", "nothing"], ...names(s, "cell").map(n => [n, n])], s.norm), check("log", "Logarithmic", "1", ""));
    } else if (s.view === "percentiles") {
      parts.push(choice("series", "Series (colour)", [...none, ...dims(differ)], s.series), choice("facet", "Panels", [...none, ["others", "all other axes"], ...dims(differ)], s.facet),
        choice("way", "Requests", [["", "all"], ["read", "read"], ["write", "write"], ["trim", "trim"]], s.way));
    } else if (s.view === "compare") {
      const values = names(s, s.by).map(v => [v, v]);
      parts.push(choice("by", "Compare two", dims(differ), s.by), choice("a", "A", values, s.a, s.by === "run"), choice("b", "B", values, s.b, s.by === "run"));
    }
    parts.push(check("differs", s.view === "compare" ? "Only what differs" : "Only columns that differ", "1", ""));
    $("controls").replaceChildren(...parts);
    filters(s, differ);
  }
  for (const select of $("controls").querySelectorAll("select")) select.value = s[select.id.slice(2)] ?? "";
  for (const box of $("controls").querySelectorAll("input")) box.checked = s[box.id.slice(2)] === box.value;
  for (const button of $("views").children) button.setAttribute("aria-pressed", String(button.value === s.view));
  for (const box of $("dimensions").querySelectorAll("input")) {
    const only = s[`only.${box.name}`];
    box.checked = !only || only.includes(box.value);
  }
}

function check(key, label, on, off) {
  return h("label", {className: "check"}, h("input", {id: `c-${key}`, type: "checkbox", value: on, onchange: event => go({[key]: event.target.checked ? on : off})}), " ", label);
}

function filters(s, differ) {
  const extra = s["only.cell"] ? ["cell"] : [];
  $("dimensions").replaceChildren(...[...differ, ...extra].filter(d => s.view !== "compare" || d !== s.by).map(d => {
    const values = [...new Set(names(s, d))];
    const press = () => {
      const on = [...boxes.querySelectorAll("input")].filter(box => box.checked).map(box => box.value);
      go({[`only.${d}`]: on.length === values.length ? undefined : on.length ? on : ["\u0000"], point: undefined});
    };
    const every = on => { for (const box of boxes.querySelectorAll("input")) box.checked = on; press(); };
    const both = values.length > 4 ? h("p", {className: "row"}, ["all", "none"].map(word =>
      h("button", {type: "button", ariaLabel: `${heading(d)}: ${word}`, onclick: () => every(word === "all")}, word))) : null;
    const boxes = h("fieldset", {}, h("legend", {}, heading(d)), both, values.map(v =>
      h("label", {}, h("input", {type: "checkbox", name: d, value: v, checked: true, onchange: press}), " ", v)));
    return boxes;
  }));
}

/** Show the view that the state says; resolve when its chart is drawn. */
async function render() {
  const s = state, began = performance.now();
  controls(s);
  if ($("said").dataset.of !== s.scenario) {
    $("said").dataset.of = s.scenario;
    $("said").replaceChildren(...question(s.scenario));
  }
  const view = SHOW[s.view](s);
  const only = Object.keys(s).filter(k => k.startsWith("only."));
  $("filters").querySelector("summary").replaceChildren(`Filter (${plural(view.found.length, "value")} shown)`, only.length ? `: ${only.map(k => heading(k.slice(5))).join(", ")} ` : "",
    only.length ? h("button", {type: "button", onclick: event => { event.preventDefault(); go(Object.fromEntries(only.map(k => [k, undefined]))); }}, "remove all filters") : "");
  $("shown").replaceChildren(...(view.lead ?? []).map(sentence => h("p", {className: "lead"}, sentence)), ...view.said.map(sentence => h("p", {className: "small"}, coded(sentence))));
  if (!window.vegaEmbed) $("shown").prepend(h("p", {}, "This page has no library for charts: the tables have all values. `lab site DIR` writes it anew."));
  if (!view.found.length && s.view !== "compare") $("shown").prepend(h("p", {}, "No value is left: remove a filter."));
  $("tables").replaceChildren(...view.tables().filter(Boolean));
  if (s.point) openPoint(s.point);
  else if ($("point").open) $("point").close();
  await draw(view.spec(), view.own, view.words);
  performance.measure("view", {start: began});
}

function openPoint(point) {
  const found = rows.find(r => pointOf(r) === point);
  if (found) details(found);
  else dialog("No such value", h("p", {}, "The address names a value that is not in this site. Its run may have been added from a file, or removed."));
}

// ---- results from elsewhere

/** Return a result document's copy with known keys of the right types only; ``Error`` says where. */
function checkedResult(document_) {
  const fail = (where, what) => { throw new Error(`${where}: ${what} was expected`); };
  const word = (v, where, otherwise) => v === undefined || v === null ? otherwise ?? fail(where, "text")
    : typeof v === "string" ? visible(v) : fail(where, "text");
  const number = (v, where) => typeof v === "number" && Number.isFinite(v) ? v : fail(where, "a number");
  const optional = (v, where) => v === undefined || v === null ? null : number(v, where);
  const list = (v, where, most = 100000) => v === undefined ? [] : Array.isArray(v) && v.length <= most ? v : fail(where, "a list");
  const map = (v, where) => v !== null && typeof v === "object" && !Array.isArray(v) ? v : fail(where, "a mapping");
  const scalar = (v, where) => typeof v === "string" ? visible(v) : v === null || typeof v === "boolean" ? v : number(v, where);
  const doc = map(document_, "document");
  if (doc.schema !== "lab.result/1") fail("schema", "lab.result/1");
  const run = map(doc.run, "run"), facts_ = map(doc.environment ?? {}, "environment");
  const named = (v, where, keys) => v === undefined || v === null ? {} : Object.fromEntries(keys.map(k => [k, word(map(v, where)[k], `${where}.${k}`, "")]));
  return {
    run: {id: word(run.id, "run.id"), scenario: word(run.scenario, "run.scenario"), started: word(run.started, "run.started")},
    answer: {question: word(doc.answer?.question, "answer.question", ""), sentences: list(doc.answer?.sentences, "answer.sentences").map(t => word(t, "answer.sentences"))},
    environment: {
      ...Object.fromEntries(["accelerator", "qemu", "lab", "branch"].map(k => [k, word(facts_[k], `environment.${k}`, "")])),
      guest: named(facts_.guest, "environment.guest", ["kernel", "mdadm"]), image: named(facts_.image, "environment.image", ["name"]), host: named(facts_.host, "environment.host", ["name"]),
    },
    claims: list(doc.claims, "claims").map(c => ({id: word(map(c, "claims").id, "claims.id"), verdict: word(c.verdict, "claims.verdict")})),
    cells: list(doc.cells, "cells").map((cell, n) => {
      const where = `cells.${n}`, own = map(cell, where);
      return {
        id: word(own.id, `${where}.id`), clock: word(own.clock, `${where}.clock`, "real"),
        axes: Object.fromEntries(Object.entries(map(own.axes, `${where}.axes`)).map(([k, v]) => [visible(k), scalar(v, `${where}.axes`)])),
        checks: list(own.checks, `${where}.checks`).filter(c => map(c, `${where}.checks`).passed === false)
          .map(c => ({workload: word(c.workload, `${where}.checks`, ""), detail: word(c.detail, `${where}.checks`, "")})),
        predictions: list(own.predictions, `${where}.predictions`).map(p => ({workload: word(map(p, where).workload, where), metric: word(p.metric, where), value: number(p.value, `${where}.predictions`)})),
        measurements: list(own.measurements, `${where}.measurements`).map((m, k) => {
          const here = `${where}.measurements.${k}`;
          return {
            workload: word(map(m, here).workload, `${here}.workload`), metric: word(m.metric, `${here}.metric`), unit: word(m.unit, `${here}.unit`),
            values: list(m.values, `${here}.values`).map(v => number(v, `${here}.values`)), median: number(m.median, `${here}.median`),
            low: optional(m.low, `${here}.low`), high: optional(m.high, `${here}.high`), no_seed_changes_it: m.no_seed_changes_it === true,
          };
        }),
      };
    }),
  };
}

/** Return a text with its control characters as escapes; a long one is cut. */
// eslint-disable-next-line no-control-regex
const visible = words => words.slice(0, 2000).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff]/g,
  found => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Return a part of a file; ``Error``: the file has no such part. */
async function part(file, from, length) {
  if (from < 0 || from + length > file.size) throw new Error("it is cut off");
  return new DataView(await file.slice(from, from + length).arrayBuffer());
}

const decoded = bytes => new TextDecoder("utf-8", {fatal: true}).decode(bytes);

function crc32(bytes) {
  let sum = -1;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = sum & 1 ? sum >>> 1 ^ 0xedb88320 : sum >>> 1;
  }
  return ~sum >>> 0;
}

/** Return the text of RUN/result.json in a bundle. The zip file has the form that lab/store/bundles.py writes. */
async function fromBundle(file) {
  const fail = why => { throw new Error(`it is no bundle: ${why}`); };
  const end = await part(file, file.size - 22, 22), count = end.getUint16(10, true);
  if (end.getUint32(0, true) !== 0x06054b50) fail("the end of the zip file is missing");
  const length = end.getUint32(12, true), start = end.getUint32(16, true);
  if (end.getUint32(4, true) || end.getUint16(8, true) !== count || end.getUint16(20, true)) fail("it is a zip file of another kind");
  if (count > MEMBERS || length > count * ENTRY || start + length + 22 !== file.size) fail("its directory is wrong");
  const names = await part(file, start, length), found = [];
  for (let at = 0, n = 0; n < count; n += 1) {
    if (at + 46 > length || names.getUint32(at, true) !== 0x02014b50) fail("its directory is wrong");
    const next = at + 46 + names.getUint16(at + 28, true) + names.getUint16(at + 30, true) + names.getUint16(at + 32, true);
    if (next > length) fail("its directory is wrong");
    const name = decoded(new Uint8Array(names.buffer, at + 46, names.getUint16(at + 28, true)));
    if (/^[^/]+\/result\.json$/.test(name)) found.push([at, name]);
    at = next;
  }
  if (found.length !== 1) fail(`it has ${plural(found.length, "result")}`);
  const [[at, name]] = found, method = names.getUint16(at + 10, true);
  const [sum, packed, size, header] = [16, 20, 24, 42].map(n => names.getUint32(at + n, true));
  if (names.getUint16(at + 8, true) & ~0x800 || ![0, 8].includes(method)) fail("its result is encrypted, or compressed in another way");
  if (size > BYTES) fail(`its result is larger than ${show(BYTES, "B")}`);
  const local = await part(file, header, 30), from = header + 30 + local.getUint16(26, true) + local.getUint16(28, true);
  if (local.getUint32(0, true) !== 0x04034b50 || from + packed > start) fail("its result is cut off");
  const raw = file.slice(from, from + packed).stream();
  const whole = new Uint8Array(size), reader = (method ? raw.pipeThrough(new DecompressionStream("deflate-raw")) : raw).getReader();
  let got = 0;
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    if (got + piece.value.length > size) fail("its result is longer than it says");
    whole.set(piece.value, got);
    got += piece.value.length;
  }
  if (got !== size || crc32(whole) !== sum) fail("its result is corrupt");
  return [decoded(whole), name.split("/")[0]];
}

/** Return the checked result of a file: a bundle, or a result document. */
async function resultOf(file) {
  const zip = file.size > 4 && (await part(file, 0, 2)).getUint16(0) === 0x504b;
  if (!zip && file.size > BYTES) throw new Error(`it is larger than ${show(BYTES, "B")}`);
  const [words, id] = zip ? await fromBundle(file) : [await file.text(), null];
  const result = checkedResult(JSON.parse(words));
  if (id !== null && id !== result.run.id) throw new Error(`it is no bundle: its result is of the run ${result.run.id}`);
  return result;
}

async function addFiles(files) {
  for (const file of files) {
    let words;
    try {
      const result = await resultOf(file);
      if (site.runs.some(one => one.result.run.id === result.run.id)) throw new Error(`the run ${result.run.id} is here already`);
      const run = {result, cells: {}};
      site.runs.unshift(run);
      for (const cell of result.cells) for (const m of cell.measurements) {
        if (!Object.hasOwn(site.metrics, m.metric)) site.metrics[m.metric] = {words: m.metric.replaceAll("_", " "), unit: m.unit, better: ""};
      }
      addRun(run);
      words = `${visible(file.name)}: added run ${result.run.id} of ${result.run.scenario}, ${plural(result.cells.length, "cell")}.`;
      go(state.view === "compare" ? {scenario: result.run.scenario, by: "run", a: undefined, b: result.run.id} : {scenario: result.run.scenario});
    } catch (error) {
      words = `${visible(file.name)} is not added: ${visible(String(error.message))}. Expected: a bundle of \`lab results export\`, or what \`lab results show RUN --json\` prints.`;
    }
    $("added").append(h("p", {}, coded(words)));
  }
}

// ---- start

Object.setPrototypeOf(site.metrics, null);
for (const run of [...site.runs]) addRun(run);
$("explore").hidden = false;
for (const link of document.querySelectorAll(".script")) link.hidden = false;
$("views").append(...Object.entries(VIEWS).map(([view, words]) => h("button", {type: "button", value: view, onclick: () => go({view, point: undefined})}, words)));
$("controls").addEventListener("submit", event => event.preventDefault());
$("point").addEventListener("close", () => { if (state.point) go({point: undefined}); });
addEventListener("hashchange", () => {
  const hash = location.hash.slice(1);
  if (hash.includes("view=") && hash !== address(state)) { state = settled(fromAddress()); built = ""; render(); }
});
const anew = () => { look_ = null; return render(); };
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(anew, 150); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
$("file").addEventListener("change", event => addFiles(event.target.files));
for (const name of ["dragover", "dragleave", "drop"]) addEventListener(name, event => {
  event.preventDefault();
  $("add").classList.toggle("over", name === "dragover");
  if (name === "drop") addFiles(event.dataTransfer.files);
});
state = settled(location.hash.includes("view=") ? fromAddress() : {});
render().then(() => performance.mark("first-view"));
