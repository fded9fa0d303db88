"use strict";
// Filters of the findings, and keys that go from one to the next.
(() => {
  const bar = document.getElementById("severities");
  if (!bar) return;
  const search = bar.querySelector("input[type=search]"), count = bar.querySelector("output");
  const rows = [...document.querySelectorAll(".findings li")];
  const cards = rows.map((row) => document.getElementById(row.querySelector("a").hash.slice(1)));
  let current = -1;

  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const on = new Set([...bar.querySelectorAll("input:checked")].map((box) => box.value));
    let shown = 0;
    rows.forEach((row, i) => {
      const text = row.textContent.toLowerCase();
      const keep = on.has(row.dataset.severity) && words.every((word) => text.includes(word));
      row.hidden = !keep;
      if (cards[i]) cards[i].hidden = !keep;
      shown += keep;
    });
    count.textContent = `${shown} of ${rows.length}`;
  };
  bar.addEventListener("input", apply);
  apply();

  const go = (step) => {
    for (let i = current + step; i >= 0 && i < rows.length; i += step) {
      if (rows[i].hidden || !cards[i]) continue;
      current = i;
      cards[i].focus({ preventScroll: true });
      cards[i].scrollIntoView({ block: "center", behavior: "instant" });
      return;
    }
  };
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j" || event.key === "n") go(1);
    else if (event.key === "k" || event.key === "p") go(-1);
    else if (event.key === "/") search.focus();
    else return;
    event.preventDefault();
  });
  document.addEventListener("focusin", (event) => {
    const card = event.target.closest?.(".finding");
    if (card) current = cards.indexOf(card);
  });
})();
