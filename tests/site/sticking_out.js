// What a reader could not see on this window without scrolling the page sideways.
() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width)
    found.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${width}`);
  const boxed = e => {
    for (; e && e !== document.body; e = e.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(e).overflowX)) return true;
    return false;
  };
  for (const e of document.querySelectorAll("main *")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    if (e.closest("mjx-assistive-mml, .headerlink, .visually-hidden, .sr-only, dialog")) continue;
    if (box.right > width + 1 && !boxed(e)) found.push(`${e.tagName} ${e.className}: ${Math.round(box.right)}`);
  }
  return found.slice(0, 10);
}
