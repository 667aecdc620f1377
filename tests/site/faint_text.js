// Every visible text whose contrast to what is behind it is below WCAG AA (4.5:1; large text 3:1).
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => c * a + below[i] * (1 - a));
  const light = rgb => {
    const [r, g, b] = rgb.map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = e => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const seen = new Set(), found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(e)) continue;
    seen.add(e);
    if (e.closest("script, style, noscript, mjx-assistive-mml, .headerlink, dialog:not([open]), .visually-hidden")) continue;
    if (!e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    if (!e.getBoundingClientRect().width) continue;
    const style = getComputedStyle(e), below = behind(e);
    const ink = rgba(e instanceof SVGElement ? style.fill : style.color);
    for (let p = e; p; p = p.parentElement) ink[3] *= getComputedStyle(p).opacity;
    const [a, b] = [light(over(ink, below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)}: ${e.tagName}.${e.className.baseVal ?? e.className} "${walker.currentNode.data.trim().slice(0, 40)}"`);
  }
  return found.slice(0, 20);
}
