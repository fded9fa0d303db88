"use strict";
// Workers by time on a canvas. A row a slot, a box a tile; everything drawn is read from the page's JSON.
// What is off the view or narrower than a pixel is skipped, so that a frame costs pixels, not tiles.
(() => {
  const figure = document.getElementById("workers");
  if (!figure) return;
  const runs = JSON.parse(document.getElementById("timelines").textContent);
  const canvas = figure.querySelector("canvas"), context = canvas.getContext("2d");
  const tip = figure.querySelector(".tip"), reading = figure.querySelector(".reading"), picked = figure.querySelector(".picked");
  const claims = figure.querySelector('[data-do="claims"]');
  const LEFT = 46, TOP = 22, BOTTOM = 8;
  let right = 92, width = 0, height = 0, run = null, view = null, selected = -1, hovered = -1, colours = {}, queued = false;
  let tiles = null;  // columns of the tiles' coordinates, where there are any

  const inflate = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Int32Array(await new Response(stream).arrayBuffer());
  };

  async function open(index) {
    const given = runs[index];
    if (!given.ready) {
      const all = await inflate(given.columns);
      let at = 0;
      const take = (count) => all.subarray(at, at += count);
      given.firstOf = take(given.slots + 1);
      [given.begin, given.finish, given.tile, given.worker] = [0, 0, 0, 0].map(() => take(given.spans));
      given.firstAsk = take(given.slots + 1);
      [given.ask, given.answer, given.got] = [0, 0, 0].map(() => take(given.asks));
      measure(given);
      given.ready = true;
    }
    const same = view && run && view.all !== true ? { ...view } : null;
    run = given;
    selected = hovered = -1;
    canvas.style.height = `${TOP + BOTTOM + Math.round(Math.min(520, Math.max(150, run.slots * 5)))}px`;
    view = same ?? whole();
    clamp();
    claims.disabled = !run.asks;
    claims.parentElement.hidden = !run.asks;
    say();
    resize();
  }

  // Busy time of each slot, when it is idle for good, Jain's index.
  function measure(r) {
    r.busy = new Float64Array(r.slots);
    r.idleFrom = new Int32Array(r.slots).fill(r.start);
    const away = new Set(r.holds.filter((h) => h[1] <= r.start && (h[2] === null || h[2] >= r.end)).map((h) => h[0]));
    let sum = 0, squares = 0, workers = 0;
    r.tailFrom = r.end;
    for (let s = 0; s < r.slots; s++) {
      for (let i = r.firstOf[s]; i < r.firstOf[s + 1]; i++) r.busy[s] += r.finish[i] - r.begin[i];
      if (r.firstOf[s + 1] > r.firstOf[s]) r.idleFrom[s] = r.finish[r.firstOf[s + 1] - 1];
      else if (away.has(s)) continue;
      workers++;
      sum += r.busy[s];
      squares += r.busy[s] ** 2;
      r.tailFrom = Math.min(r.tailFrom, r.idleFrom[s]);
    }
    r.mostBusy = Math.max(1, ...r.busy);
    r.fairness = squares ? sum ** 2 / (workers * squares) : 1;
    r.away = away;
  }

  const whole = () => {
    const room = Math.max(1, (run.end - run.start) * 0.01);
    return { t0: Math.min(0, run.start), t1: run.end + room, r0: 0, r1: run.slots, all: true };
  };
  const us = (ticks) => (ticks * run.tick_ns) / 1000;
  const shown = (ticks) => {
    const value = us(ticks);
    return value >= 1000 ? `${(value / 1000).toFixed(3)} ms` : `${value.toFixed(value < 10 ? 3 : 2)} us`;
  };
  const plotWidth = () => width - LEFT - right;
  const plotHeight = () => height - TOP - BOTTOM;
  const xOf = (t) => LEFT + ((t - view.t0) / (view.t1 - view.t0)) * plotWidth();
  const yOf = (r) => TOP + ((r - view.r0) / (view.r1 - view.r0)) * plotHeight();
  const tOf = (x) => view.t0 + ((x - LEFT) / plotWidth()) * (view.t1 - view.t0);
  const rOf = (y) => view.r0 + ((y - TOP) / plotHeight()) * (view.r1 - view.r0);

  function say() {
    const makespan = run.end - run.start, tail = run.end - run.tailFrom;
    reading.textContent =
      `${run.scheduler}: ${run.spans} tiles on ${run.slots} slots, makespan ${shown(makespan)}, tail ${shown(tail)} ` +
      `(${makespan ? ((100 * tail) / makespan).toFixed(1) : 0} %), fairness ${run.fairness.toFixed(4)}` +
      (run.asks ? `, ${run.asks} requests for work` : "") + `; ${run.source}.`;
  }

  function palette() {
    const probe = document.createElement("span");
    figure.append(probe);
    for (const name of ["panel", "ink", "soft", "line", "accent", "fill", "fill-2", "weak", "warn", "bad", "hatch"]) {
      probe.style.color = `var(--${name})`;
      colours[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = colours.hatch;
    pen.lineWidth = 1;
    for (const x of [-8, 0, 8]) { pen.moveTo(x, 8); pen.lineTo(x + 8, 0); }
    pen.stroke();
    colours.pattern = context.createPattern(tile, "repeat");
    colours.font = getComputedStyle(figure).fontFamily;
  }

  function resize() {
    const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    width = box.width;
    height = box.height;
    right = width < 620 ? 44 : 92;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    palette();
    paint();
  }

  function paint() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; draw(); });
  }

  function draw() {
    if (!run) return;
    const c = context;
    c.fillStyle = colours.panel;
    c.fillRect(0, 0, width, height);
    axis(c);
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP, plotWidth(), plotHeight());
    c.clip();
    rows(c);
    holds(c);
    if (claims.checked && run.asks) requests(c);
    outline(c, hovered, colours.ink, 1.5);
    outline(c, selected, colours.accent, 3);
    c.restore();
    margin(c);
    raster();
  }

  // The longest of 1, 2, 5 x 10^n microseconds that leaves room for its labels.
  function step() {
    const least = ((view.t1 - view.t0) / plotWidth()) * 78;
    const ten = 10 ** Math.floor(Math.log10(us(least)));
    const found = [1, 2, 5, 10].map((k) => k * ten).find((k) => k >= us(least));
    return (found * 1000) / run.tick_ns;
  }

  function axis(c) {
    const every = step();
    c.font = `12px ${colours.font}`;
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.lineWidth = 1;
    for (let t = Math.ceil(view.t0 / every) * every; t <= view.t1; t += every) {
      const x = Math.round(xOf(t)) + 0.5;
      c.strokeStyle = colours.line;
      c.beginPath();
      c.moveTo(x, TOP - 5);
      c.lineTo(x, height - BOTTOM);
      c.stroke();
      const text = `${+us(t).toPrecision(9)}${t === 0 || Math.abs(t) < every / 2 ? " us" : ""}`;
      if (x + 4 + c.measureText(text).width < width - right) {
        c.fillStyle = colours.soft;
        c.fillText(text, x + 3, TOP / 2 - 1);
      }
    }
  }

  // First span of a slot that ends after t.
  function firstAfter(slot, t) {
    let low = run.firstOf[slot], high = run.firstOf[slot + 1];
    while (low < high) {
      const mid = (low + high) >> 1;
      if (run.finish[mid] > t) high = mid;
      else low = mid + 1;
    }
    return low;
  }

  function rows(c) {
    const tall = plotHeight() / (view.r1 - view.r0), gap = tall >= 5 ? 1 : 0;
    const scale = plotWidth() / (view.t1 - view.t0), skip = Math.max(1, Math.floor(0.75 / tall));
    const labels = [], boxes = [[], []];
    for (let s = Math.max(0, Math.floor(view.r0)); s < Math.min(run.slots, Math.ceil(view.r1)); s += skip) {
      const y = yOf(s), h = Math.max(1, tall * skip - gap), last = run.firstOf[s + 1];
      const idle = Math.max(xOf(run.idleFrom[s]), LEFT), end = xOf(run.end);
      if (end > idle && !run.away.has(s)) {
        c.fillStyle = colours.pattern;
        c.fillRect(idle, y, end - idle, h);
      }
      let drawn = -1;
      for (let i = firstAfter(s, view.t0); i < last && run.begin[i] < view.t1; i++) {
        const x = LEFT + (run.begin[i] - view.t0) * scale, w = (run.finish[i] - run.begin[i]) * scale;
        if (x + w < drawn + 0.5) continue;
        drawn = x + w;
        const x0 = Math.round(x), y0 = Math.round(y);
        boxes[(i - run.firstOf[s]) & 1].push(x0, y0, Math.max(1, Math.round(x + w - (w > 4 ? 1 : 0)) - x0), Math.max(1, Math.round(y + h) - y0));
        if (w > 26 && h > 12) labels.push(i, x, y, w, h);
      }
    }
    for (const [k, list] of boxes.entries()) {  // a colour at a time: to change it costs more than a box
      c.fillStyle = colours[k ? "fill-2" : "fill"];
      for (let n = 0; n < list.length; n += 4) c.fillRect(list[n], list[n + 1], list[n + 2], list[n + 3]);
    }
    c.font = `12px ${colours.font}`;
    c.textBaseline = "middle";
    c.textAlign = "center";
    for (let k = 0; k < labels.length; k += 5) {
      const [i, x, y, w, h] = labels.slice(k, k + 5);
      const a = Math.max(x, LEFT), b = Math.min(x + w, width - right), text = `${run.tile[i]}`;
      if (c.measureText(text).width + 6 > b - a) continue;
      c.lineWidth = 3;
      c.strokeStyle = colours.panel;
      c.strokeText(text, (a + b) / 2, y + h / 2 + 0.5);
      c.fillStyle = colours.ink;
      c.fillText(text, (a + b) / 2, y + h / 2 + 0.5);
    }
    const tail = xOf(run.tailFrom);
    if (run.tailFrom < run.end && tail > LEFT) {
      c.strokeStyle = colours.warn;
      c.lineWidth = 1.5;
      c.setLineDash([5, 3]);
      c.beginPath();
      c.moveTo(tail, TOP);
      c.lineTo(tail, height - BOTTOM);
      c.stroke();
      c.setLineDash([]);
    }
  }

  // Slots in the hands of another kernel; neighbours that are held alike are one box.
  function holds(c) {
    for (let k = 0; k < run.holds.length; k++) {
      const [slot, from, to] = run.holds[k];
      let last = slot;
      while (k + 1 < run.holds.length && run.holds[k + 1][0] === last + 1 && run.holds[k + 1][1] === from && run.holds[k + 1][2] === to) { last++; k++; }
      const x = Math.max(LEFT, xOf(from)), end = Math.min(to === null ? width : xOf(to), width - right), y = yOf(slot), h = yOf(last + 1) - y;
      if (end <= x) continue;
      c.fillStyle = colours.weak;
      c.fillRect(x, y, end - x, h);
      c.strokeStyle = colours.soft;
      c.lineWidth = 1;
      c.strokeRect(x + 0.5, y + 0.5, end - x - 1, Math.max(0, h - 1));
      const text = "held by another kernel";
      c.font = `12px ${colours.font}`;
      if (h < 14 || c.measureText(text).width + 12 > end - x) continue;
      c.textAlign = "left";
      c.textBaseline = "middle";
      c.fillStyle = colours.ink;
      c.fillText(text, x + 6, Math.max(y, TOP) + (Math.min(y + h, height - BOTTOM) - Math.max(y, TOP)) / 2);
    }
  }

  // A request: a dot where it was asked, a line to its response, an arrow to the tile that it brought. Declined: a cross.
  function requests(c) {
    const tall = plotHeight() / (view.r1 - view.r0), close = tall >= 9;
    const apart = (view.t1 - view.t0) / plotWidth() * 3;
    c.lineWidth = 1.25;
    for (let s = Math.max(0, Math.floor(view.r0)); s < Math.min(run.slots, Math.ceil(view.r1)); s++) {
      const y = yOf(s + 0.5);
      let last = -Infinity;
      for (let k = run.firstAsk[s]; k < run.firstAsk[s + 1]; k++) {
        const ask = run.ask[k];
        if (ask > view.t1) break;
        const declined = run.got[k] < 0;
        if (run.answer[k] < view.t0 - (view.t1 - view.t0) || (!close && !declined && ask - last < apart)) continue;
        last = ask;
        const x = xOf(ask);
        c.fillStyle = c.strokeStyle = declined ? colours.bad : colours.ink;
        if (declined) {
          c.beginPath();
          c.moveTo(x - 3, y - 3); c.lineTo(x + 3, y + 3); c.moveTo(x - 3, y + 3); c.lineTo(x + 3, y - 3);
          c.stroke();
          continue;
        }
        const r = Math.min(2.5, tall / 2.5);
        c.fillRect(x - r, y - r, 2 * r, 2 * r);
        if (!close) continue;
        const to = spanOf(s, run.got[k], ask), low = yOf(s + 1) - Math.min(5, tall / 4);
        const end = Math.max(xOf(run.answer[k]), x + 2), start = to < 0 ? end : xOf(run.begin[to]);
        c.beginPath();
        c.moveTo(x, y); c.lineTo(x, low); c.lineTo(end, low);
        c.moveTo(end, low - 3); c.lineTo(end, low + 3);
        if (to >= 0) { c.moveTo(end, low); c.lineTo(start, low); c.moveTo(start - 4, low - 3); c.lineTo(start, low); c.lineTo(start - 4, low + 3); }
        c.stroke();
      }
    }
  }

  function spanOf(slot, tile, after) {
    for (let i = firstAfter(slot, after); i < run.firstOf[slot + 1]; i++) if (run.tile[i] === tile && run.begin[i] >= after) return i;
    return -1;
  }

  const slotOf = (i) => {
    let low = 0, high = run.slots;
    while (high - low > 1) {
      const mid = (low + high) >> 1;
      if (run.firstOf[mid] <= i) low = mid;
      else high = mid;
    }
    return low;
  };

  function outline(c, i, colour, line) {
    if (i < 0) return;
    const s = slotOf(i), x = xOf(run.begin[i]), w = Math.max(3, xOf(run.finish[i]) - x), y = yOf(s);
    c.strokeStyle = colour;
    c.lineWidth = line;
    c.strokeRect(x, y, w, Math.max(3, yOf(s + 1) - y));
  }

  // Names of rows at the left; at the right, how long each was busy.
  function margin(c) {
    const tall = plotHeight() / (view.r1 - view.r0), every = Math.max(1, Math.ceil(14 / tall));
    c.font = `12px ${colours.font}`;
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.fillStyle = colours.soft;
    c.fillText("slot", LEFT - 6, TOP / 2 - 1);
    const from = width - right + 6, room = right - 12;
    c.textAlign = "left";
    c.fillText("busy", from, TOP / 2 - 1);
    for (let s = Math.max(0, Math.floor(view.r0)); s < Math.min(run.slots, Math.ceil(view.r1)); s++) {
      const y = yOf(s);
      if (s % every === 0 && y + tall / 2 >= TOP + 1 && y + tall / 2 < height - BOTTOM) {
        c.textAlign = "right";
        c.fillStyle = colours.soft;
        c.fillText(`${s}`, LEFT - 6, y + tall / 2);
      }
      const top = Math.max(y, TOP), bottom = Math.min(y + Math.max(tall - (tall >= 5 ? 1 : 0), 0.5), height - BOTTOM);
      if (bottom <= top) continue;
      c.fillStyle = colours.weak;
      c.fillRect(from, top, room, bottom - top);
      c.fillStyle = colours.fill;
      c.fillRect(from, top, (room * run.busy[s]) / run.mostBusy, bottom - top);
    }
    c.strokeStyle = colours.soft;
    c.lineWidth = 1;
    c.strokeRect(LEFT - 0.5, TOP - 0.5, plotWidth() + 1, plotHeight() + 1);
  }

  function clamp() {
    const all = whole(), least = Math.max(2, (all.t1 - all.t0) / 1e6);
    let span = Math.min(all.t1 - all.t0, Math.max(least, view.t1 - view.t0));
    view.t0 = Math.max(all.t0, Math.min(view.t0, all.t1 - span));
    view.t1 = view.t0 + span;
    span = Math.min(all.r1, Math.max(Math.min(2, all.r1), view.r1 - view.r0));
    view.r0 = Math.max(0, Math.min(view.r0, all.r1 - span));
    view.r1 = view.r0 + span;
    view.all = view.t0 === all.t0 && view.t1 === all.t1 && view.r0 === 0 && view.r1 === all.r1;
  }

  function zoom(factor, x = LEFT + plotWidth() / 2, y = TOP + plotHeight() / 2) {
    const t = tOf(x), r = rOf(y);
    view = { t0: t - (t - view.t0) * factor, t1: t + (view.t1 - t) * factor, r0: r - (r - view.r0) * factor, r1: r + (view.r1 - r) * factor };
    clamp();
    paint();
  }

  function show(i) {
    const s = slotOf(i), took = Math.max(1, run.finish[i] - run.begin[i]);
    view = { t0: run.begin[i] - took * 0.9, t1: run.finish[i] + took * 0.9, r0: s - 3, r1: s + 4 };
    clamp();
    paint();
  }

  function at(x, y) {
    if (x < LEFT || x > width - right || y < TOP || y > height - BOTTOM) return -1;
    const s = Math.floor(rOf(y)), t = tOf(x);
    if (s < 0 || s >= run.slots) return -1;
    const i = firstAfter(s, t);
    return i < run.firstOf[s + 1] && run.begin[i] <= t ? i : -1;
  }

  function describe(i) {
    const s = slotOf(i), tile = run.tile[i], lines = [`tile ${tile}, slot ${s}, worker ${run.worker[i]}`];
    lines.push(`${shown(run.begin[i])} to ${shown(run.finish[i])}: ${shown(run.finish[i] - run.begin[i])}`);
    lines.push(`number ${i - run.firstOf[s] + 1} of ${run.firstOf[s + 1] - run.firstOf[s]} in its slot`);
    if (tiles && tile < tiles.count) {
      const [g, m, n] = [0, 1, 2].map((k) => tiles.columns[k * tiles.count + tile]);
      lines.push(`${tiles.groups > 1 ? `group ${g}, ` : ""}rows ${m * tiles.tile_m} to ${(m + 1) * tiles.tile_m}, columns ${n * tiles.tile_n} to ${(n + 1) * tiles.tile_n}`);
    }
    for (let k = run.firstAsk[s]; k < run.firstAsk[s + 1]; k++) {
      if (run.got[k] === tile) lines.push(`asked for at ${shown(run.ask[k])}, granted at ${shown(run.answer[k])}`);
      if (run.ask[k] >= run.begin[i] && run.ask[k] < run.finish[i]) {
        lines.push(run.got[k] < 0 ? `asks at ${shown(run.ask[k])}: declined` : `asks at ${shown(run.ask[k])}: gets tile ${run.got[k]}`);
      }
    }
    return lines;
  }

  function select(i) {
    selected = i;
    picked.textContent = i < 0 ? "No tile selected: click one, or use the arrow keys." : `Selected ${describe(i).join("; ")}.`;
    if (i >= 0) {
      const s = slotOf(i), middle = (run.begin[i] + run.finish[i]) / 2;
      if (middle < view.t0 || middle > view.t1) { const half = (view.t1 - view.t0) / 2; view.t0 = middle - half; view.t1 = middle + half; }
      if (s < view.r0 || s + 1 > view.r1) { const half = (view.r1 - view.r0) / 2; view.r0 = s + 0.5 - half; view.r1 = s + 0.5 + half; }
      clamp();
    }
    paint();
  }

  // Arrow keys: the next tile of the slot, or the one of the neighbouring slot at the same time.
  function step_to(key) {
    if (selected < 0) { if (run.spans) select(Math.max(0, firstAfter(Math.floor(view.r0), view.t0))); return; }
    const s = slotOf(selected);
    if (key === "ArrowLeft" && selected > run.firstOf[s]) select(selected - 1);
    if (key === "ArrowRight" && selected + 1 < run.firstOf[s + 1]) select(selected + 1);
    const down = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0;
    if (!down) return;
    const middle = (run.begin[selected] + run.finish[selected]) / 2;
    for (let n = s + down; n >= 0 && n < run.slots; n += down) {
      if (run.firstOf[n] === run.firstOf[n + 1]) continue;
      return select(Math.min(firstAfter(n, middle), run.firstOf[n + 1] - 1));
    }
  }

  const acts = {
    fit: () => { view = whole(); paint(); },
    tail: () => {
      const tail = run.end - run.tailFrom, room = Math.max(tail * 0.15, (run.end - run.start) / 200);
      view = { t0: run.tailFrom - room, t1: run.end + room, r0: 0, r1: run.slots };
      clamp();
      paint();
    },
    tile: () => { if (selected < 0) step_to("ArrowRight"); if (selected >= 0) show(selected); },
    in: () => zoom(1 / 1.6),
    out: () => zoom(1.6),
  };
  for (const button of figure.querySelectorAll("button[data-do]")) button.addEventListener("click", () => acts[button.dataset.do]());
  claims.addEventListener("change", paint);
  for (const radio of figure.querySelectorAll('input[name="run"]')) radio.addEventListener("change", () => open(+radio.value));

  canvas.addEventListener("keydown", (event) => {
    const keys = { "+": "in", "=": "in", "-": "out", 0: "fit", Escape: "fit", t: "tail", Enter: "tile" };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) step_to(event.key);
    else if (keys[event.key]) acts[keys[event.key]]();
    else return;
    event.preventDefault();
  });

  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.004), event.offsetX, event.offsetY);
  }, { passive: false });

  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (before && (event.buttons & 1)) {
      const dx = event.offsetX - before.offsetX, dy = event.offsetY - before.offsetY;
      moved += Math.abs(dx) + Math.abs(dy);
      if (moved > 3) canvas.setPointerCapture(event.pointerId);
      if (pointers.size === 2) {
        const other = [...pointers.values()].find((p) => p.pointerId !== event.pointerId);
        const apart = (p) => Math.hypot(p.offsetX - other.offsetX, p.offsetY - other.offsetY) || 1;
        zoom(apart(before) / apart(event), (event.offsetX + other.offsetX) / 2, (event.offsetY + other.offsetY) / 2);
      } else {
        const t = (dx / plotWidth()) * (view.t1 - view.t0), r = (dy / plotHeight()) * (view.r1 - view.r0);
        view = { t0: view.t0 - t, t1: view.t1 - t, r0: view.r0 - r, r1: view.r1 - r };
        clamp();
      }
      pointers.set(event.pointerId, event);
      hide();
      paint();
      return;
    }
    hover(at(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => {
    pointers.delete(event.pointerId);
    if (name === "pointerup" && moved <= 3) select(at(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerleave", () => { hover(-1, 0, 0); });
  canvas.addEventListener("dblclick", (event) => {
    const i = at(event.offsetX, event.offsetY);
    if (i >= 0) { select(i); show(i); }
  });

  function hide() { tip.hidden = true; }
  let moment = null;
  function hover(i, x, y) {
    const time = i < 0 ? null : tOf(x);
    const changed = i !== hovered || time !== moment;
    hovered = i;
    moment = time;
    if (i < 0) hide();
    else {
      tip.textContent = describe(i).join("\n");
      tip.hidden = false;
      const w = tip.offsetWidth, h = tip.offsetHeight;
      tip.style.left = `${Math.max(2, Math.min(x + 12, width - w - 2))}px`;
      tip.style.top = `${y + 16 + h > height ? Math.max(2, y - h - 10) : y + 16}px`;
    }
    if (changed) paint();
  }

  // The map of D at one moment: which tiles are done, which are in flight.
  function raster() {
    const home = document.getElementById("raster");
    if (!home || !tiles) return;
    const now = moment ?? (selected >= 0 ? (run.begin[selected] + run.finish[selected]) / 2 : (run.start + run.end) / 2);
    home.querySelector("output").textContent = moment === null && selected < 0 ? `half the run, ${shown(now)}` : shown(now);
    const board = home.querySelector("canvas"), ratio = devicePixelRatio || 1;
    const room = Math.min(home.clientWidth, 620), cell = Math.max(Math.min(room / tiles.columns_, 330 / tiles.rows, 22), 0.5);
    const w = cell * tiles.columns_, h = cell * tiles.rows;
    if (board.width !== Math.round(w * ratio) || board.height !== Math.round(h * ratio)) {
      board.width = Math.round(w * ratio);
      board.height = Math.round(h * ratio);
      board.style.width = `${w}px`;
      board.style.height = `${h}px`;
    }
    const c = board.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = colours.weak;
    c.fillRect(0, 0, w, h);
    const inset = cell > 5 ? 0.5 : 0;
    for (let i = 0; i < run.spans; i++) {
      if (run.begin[i] > now || run.tile[i] >= tiles.count) continue;
      const x = tiles.columns[2 * tiles.count + run.tile[i]] * cell, y = tiles.columns[3 * tiles.count + run.tile[i]] * cell;
      const flying = run.finish[i] > now;
      c.fillStyle = flying ? colours.panel : colours["fill-2"];
      c.fillRect(x + inset, y + inset, cell - 2 * inset, cell - 2 * inset);
      if (flying) {
        c.strokeStyle = colours.warn;
        c.lineWidth = Math.min(2, cell / 4);
        c.strokeRect(x + 1, y + 1, Math.max(cell - 2, 0.5), Math.max(cell - 2, 0.5));
      }
    }
    c.strokeStyle = colours.soft;
    c.lineWidth = 1;
    c.strokeRect(0.5, 0.5, w - 1, h - 1);
  }

  async function start() {
    const carried = document.getElementById("tiles");
    if (carried) {
      const given = JSON.parse(carried.textContent);
      tiles = { ...given, columns_: given.columns, columns: await inflate(given.packed) };
    }
    await open(0);
    new ResizeObserver(resize).observe(canvas);
    document.addEventListener("repaint", () => { palette(); draw(); });
    figure.timeline = { get view() { return view; }, get run() { return run; }, draw, zoom, acts, select, at, xOf, yOf, slotOf, get selected() { return selected; } };
    figure.dataset.ready = "true";
  }
  start();
})();
