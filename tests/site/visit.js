// Opens pages one after the other in a frame of some width and tells what a check says of each.
const frame = document.createElement("iframe");
frame.style.cssText = "border: 0; height: 1400px";
document.body.append(frame);

const opened = (page) =>
  new Promise((done) => {
    frame.onload = done;
    frame.src = page;
  });

const added = (file) =>
  new Promise((done, failed) => {
    const script = frame.contentDocument.createElement("script");
    Object.assign(script, { src: new URL(file, document.baseURI), onload: done, onerror: failed });
    frame.contentDocument.head.append(script);
  });

const opening = (element) => element.outerHTML.slice(0, 150);

// What is wider than the page, which would scroll as a whole; figures that are not there; words of
// code on two lines.
const layout = async (page) => {
  const whole = page.documentElement;
  const words = page.querySelectorAll("article :is(p, li, td, th) code .pre:not(.long)");
  return [
    ...(whole.scrollWidth > whole.clientWidth ? [`${whole.scrollWidth} pixels wide`] : []),
    ...[...page.images].filter((each) => !each.naturalWidth).map(opening),
    ...[...words].filter((each) => each.getClientRects().length > 1).map(opening),
  ];
};

const axe = async (page) => {
  // A page whose policy lets no file in has it already.
  if (!frame.contentWindow.axe) await added("axe.js");
  const found = [];
  for (const theme of ["light", "dark"]) {
    page.body.dataset.theme = page.documentElement.dataset.theme = theme;
    const { violations } = await frame.contentWindow.axe.run(page, { resultTypes: ["violations"] });
    const serious = violations.filter((each) => ["serious", "critical"].includes(each.impact));
    found.push(...serious.map((each) => `${theme}: ${each.id}: ${each.nodes[0].html.slice(0, 150)}`));
  }
  return found;
};

const visit = async (pages, widths, check) => {
  const found = [];
  for (const page of pages) {
    for (const width of widths) {
      frame.style.width = `${width}px`;
      await opened(page);
      const said = await check(frame.contentDocument);
      found.push(...said.map((each) => `${page}, ${width} pixels: ${each}`));
    }
  }
  return found;
};
