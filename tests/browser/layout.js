// What is wrong with a page's layout: text over text, text cut off, elements past the edge, faint colours.
() => {
  const wrong = [];
  const visible = (el) => el.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const scrolls = (el) => { for (let at = el; at; at = at.parentElement) if (/auto|scroll/.test(getComputedStyle(at).overflowX)) return at; return null; };
  const clipped = (el) => { for (let at = el; at; at = at.parentElement) if (getComputedStyle(at).clipPath === "inset(50%)") return true; return false; };
  const name = (el) => `${el.tagName.toLowerCase()}.${el.className.baseVal ?? el.className}: ${el.textContent.trim().slice(0, 40)}`;
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) wrong.push(`page is ${page.scrollWidth} wide, window ${page.clientWidth}`);

  const boxes = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const el = node.parentElement;
    if (!node.data.trim() || el.closest("script, style, noscript, .skip, title") || !visible(el) || clipped(el)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const clip = scrolls(el)?.getBoundingClientRect();
    for (const r of range.getClientRects()) {
      if (r.width < 1 || r.height < 1) continue;
      if (clip && (r.right > clip.right + 1 || r.left < clip.left - 1)) continue;  // reached by scrolling
      if (r.right > page.clientWidth + 1 || r.left < -1) { if (r.right > 0) wrong.push(`past the edge: ${name(el)}`); continue; }
      boxes.push({ r, el, node });
    }
  }
  boxes.sort((a, b) => a.r.top - b.r.top);
  for (let i = 0; i < boxes.length; i++) {
    for (let k = i + 1; k < boxes.length && boxes[k].r.top < boxes[i].r.bottom - 3; k++) {
      const a = boxes[i].r, b = boxes[k].r;
      if (boxes[i].node === boxes[k].node) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 4) wrong.push(`over each other: ${name(boxes[i].el)} / ${name(boxes[k].el)}`);
    }
  }
  for (const el of document.querySelectorAll("main *, header *, nav *")) {
    const style = getComputedStyle(el);
    if (!visible(el) || el.closest("svg") || style.overflowX !== "hidden" || clipped(el)) continue;
    if (el.scrollWidth > el.clientWidth + 1 && !el.matches(".track")) wrong.push(`cut: ${name(el)}`);
  }
  for (const el of document.querySelectorAll("svg text")) {
    const text = el.getBoundingClientRect(), box = el.parentElement.querySelector("rect")?.getBoundingClientRect();
    if (box && visible(el) && text.width > box.width + 1) wrong.push(`wider than its box: ${name(el)}`);
  }

  // Contrast of text with what is behind it: 4.5 to 1 (WCAG 2.2, 1.4.3).
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (el) => { for (let at = el; at; at = at.parentElement) { const c = rgba(getComputedStyle(at).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255, 255]; };
  const seen = new Set();
  for (const { el } of boxes) {
    if (el.closest("svg")) continue;
    const colour = getComputedStyle(el).color, back = behind(el), key = `${colour} on ${back}`;
    if (seen.has(key)) continue;
    seen.add(key);
    const [x, y] = [light(rgba(colour)), light(back)].sort((a, b) => b - a), ratio = (x + 0.05) / (y + 0.05);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${key}: ${name(el)}`);
  }
  return [...new Set(wrong)];
}
