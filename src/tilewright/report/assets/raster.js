"use strict";
// The map of D at one moment: which tiles are done, which are in flight.
function paintRaster(home, run, tiles, now, said, colours) {
  home.querySelector("output").textContent = said;
  const board = home.querySelector("canvas"), ratio = devicePixelRatio || 1;
  const room = Math.min(home.clientWidth, 620), cell = Math.max(Math.min(room / tiles.across, 330 / tiles.down, 22), 0.5);
  const w = cell * tiles.across, h = cell * tiles.down;
  const key = [run.scheduler, now, w, h, ratio, colours.panel].join();
  if (board.dataset.key === key) return;
  board.dataset.key = key;
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
  const inset = cell > 5 ? 0.5 : 0, flying = [];
  const placeOf = (i) => [2, 3].map((k) => tiles.columns[k * tiles.count + run.tile[i] - tiles.first] * cell);
  c.fillStyle = colours["fill-2"];
  for (let i = 0; i < run.spans; i++) {
    if (run.begin[i] > now) continue;
    if (run.finish[i] > now) { flying.push(i); continue; }
    const [x, y] = placeOf(i);
    c.fillRect(x + inset, y + inset, cell - 2 * inset, cell - 2 * inset);
  }
  c.fillStyle = colours.panel;
  c.strokeStyle = colours.warn;
  c.lineWidth = Math.min(2, cell / 4);
  for (const [x, y] of flying.map(placeOf)) {
    c.fillRect(x + inset, y + inset, cell - 2 * inset, cell - 2 * inset);
    c.strokeRect(x + 1, y + 1, Math.max(cell - 2, 0.5), Math.max(cell - 2, 0.5));
  }
  c.strokeStyle = colours.soft;
  c.lineWidth = 1;
  c.strokeRect(0.5, 0.5, w - 1, h - 1);
}
