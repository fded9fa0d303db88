"use strict";
// A run as the page carries it: packed columns, unpacked once, and look-ups in them.

const inflate = async (text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Int32Array(await new Response(stream).arrayBuffer());
};

// Unpack a run's columns: spans by slot and time, requests likewise.
async function unpack(given) {
  if (given.ready) return given;
  const all = await inflate(given.columns);
  let at = 0;
  const take = (count) => all.subarray(at, at += count);
  given.firstOf = take(given.slots + 1);
  [given.begin, given.finish, given.tile, given.worker] = [0, 0, 0, 0].map(() => take(given.spans));
  given.firstAsk = take(given.slots + 1);
  [given.ask, given.answer, given.got] = [0, 0, 0].map(() => take(given.asks));
  measure(given);
  given.ready = true;
  return given;
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

// First span of a slot that ends after t.
function firstAfter(run, slot, t) {
  let low = run.firstOf[slot], high = run.firstOf[slot + 1];
  while (low < high) {
    const mid = (low + high) >> 1;
    if (run.finish[mid] > t) high = mid;
    else low = mid + 1;
  }
  return low;
}

// The span in which a slot did a tile, from a time on; -1 where there is none.
function spanOf(run, slot, tile, after) {
  for (let i = firstAfter(run, slot, after); i < run.firstOf[slot + 1]; i++) if (run.tile[i] === tile && run.begin[i] >= after) return i;
  return -1;
}

// The slot of a span.
function slotOf(run, i) {
  let low = 0, high = run.slots;
  while (high - low > 1) {
    const mid = (low + high) >> 1;
    if (run.firstOf[mid] <= i) low = mid;
    else high = mid;
  }
  return low;
}
