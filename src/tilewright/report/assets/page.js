"use strict";
// What every page has: the theme button, the section in view, filters of long tables, the tile map's links.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const themes = [["", "as the system"], ["light", "light"], ["dark", "dark"]];
  let theme = 0;
  button.addEventListener("click", () => {
    theme = (theme + 1) % themes.length;
    if (themes[theme][0]) root.dataset.theme = themes[theme][0];
    else delete root.dataset.theme;
    button.textContent = `theme: ${themes[theme][1]}`;
    document.dispatchEvent(new Event("repaint"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("repaint")));
  matchMedia("print").addEventListener("change", () => document.dispatchEvent(new Event("repaint")));

  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.getAttribute("aria-labelledby"))?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "0px 0px -75% 0px" });
  for (const section of document.querySelectorAll("main > section")) seen.observe(section);

  // A table with a column of kinds, or a long one, can be filtered by words and by kind.
  for (const table of document.querySelectorAll("table.data")) {
    const rows = [...table.tBodies[0].rows];
    const kinds = [...new Set(rows.flatMap((row) => [...row.querySelectorAll("td > .kind")].map((k) => k.textContent)))];
    const ofKind = [...table.tHead.rows[0].cells].some((cell) => cell.textContent === "kind");
    if (rows.length < 12 || !ofKind) continue;
    const bar = document.createElement("div");
    bar.className = "filter";
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "filter by words";
    search.setAttribute("aria-label", "Filter rows by words");
    bar.append(search);
    const boxes = kinds.map((kind) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = true;
      box.value = kind;
      label.append(box, ` ${kind}`);
      bar.append(label);
      return box;
    });
    const count = document.createElement("output");
    bar.append(count);
    const apply = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const kind = row.querySelector("td > .kind")?.textContent;
        row.hidden = off.has(kind) || !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = `${shown} of ${rows.length}`;
    };
    bar.addEventListener("input", apply);
    apply();
    table.closest(".scroll").before(bar);
  }

  // Pointing at a CTA of the tile map shows which operand pieces it uses.
  for (const map of document.querySelectorAll(".tile-map")) {
    const show = (cta) => {
      const mates = new Set(cta ? cta.dataset.mates.split(" ") : []);
      for (const part of map.querySelectorAll(".operand")) {
        part.classList.toggle("on", part.dataset.to.split(" ").some((rank) => mates.has(rank)) && uses(part, cta, mates));
      }
      for (const other of map.querySelectorAll(".cta")) other.classList.toggle("on", other === cta);
    };
    // A's rows are an SM's own; of B the MMA of a pair reads both halves.
    const uses = (part, cta, mates) => {
      const to = part.dataset.to.split(" ");
      return part.dataset.operand === "a" ? to.includes(cta.dataset.cta) : to.some((rank) => mates.has(rank));
    };
    map.addEventListener("pointerover", (event) => show(event.target.closest(".cta")));
    map.addEventListener("pointerleave", () => show(null));
    map.addEventListener("focusin", (event) => show(event.target.closest(".cta")));
    map.addEventListener("focusout", () => show(null));
  }
})();
