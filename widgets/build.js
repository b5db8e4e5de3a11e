// Bundles each entry of src/ that is there into nb_accelerate/ui/static, where Python reads it.
// Unminified, so that a change of the source reads as a change of the bundle.
import { existsSync } from "node:fs";
import { build } from "esbuild";

const ENTRIES = ["src/board.js", "src/panel.js"];
const present = ENTRIES.filter((entry) => existsSync(entry));

if (present.length === 0) {
  console.log(`Nothing to bundle: none of ${ENTRIES.join(", ")} is there.`);
} else {
  await build({
    entryPoints: present,
    bundle: true,
    format: "esm",
    target: "es2022",
    outdir: "../nb_accelerate/ui/static",
    logLevel: "info",
  });
}
