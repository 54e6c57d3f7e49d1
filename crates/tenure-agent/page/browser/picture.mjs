// Draws the picture of the README, and with TENURE_SHOTS others to look at: the same day in the dark and on a phone.

import { fileURLToPath } from "node:url";
import { SHOTS, open, browser, sees, shoot } from "./kit.mjs";

const chrome = await browser();
try {
  const draw = async (options, name) => {
    const page = await open(chrome, options);
    await sees(page, "#needs", /billing-export has no leader/);
    await sees(page, "#members", /4 of 5 beating/);
    await page.waitForTimeout(1200);
    await shoot(page, name);
    return page;
  };
  const page = await draw({ width: 1440, height: 900 }, "picture");
  await page.screenshot({ path: fileURLToPath(new URL("../../../../docs/page.png", import.meta.url)) });
  if (SHOTS) {
    await draw({ width: 1600, height: 2600 }, "picture-whole");
    await draw({ width: 1600, height: 1000, dark: true }, "picture-dark");
    await draw({ width: 390, height: 2400 }, "picture-phone");
  }
} finally {
  await chrome.close();
}
