/**
 * Whether the committed dashboard is what its source makes: the same types, and the same bytes.
 * tests/ui/test_bundle.py measures it.
 *
 * `npm run check` in ui/; `make ui-check` calls it.
 */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = new URL("../", import.meta.url).pathname;
const committed = join(root, "../src/perdure/server/ui");
const problems = [];
const run = (command, ...args) => {
  try {
    execFileSync(command, args, { cwd: root, stdio: ["ignore", "pipe", "pipe"] });
  } catch (error) {
    problems.push(`${error.stdout}${error.stderr}`.trim());
  }
};

const made = mkdtempSync(join(tmpdir(), "perdure-ui-"));
run("node", "scripts/types.mjs", join(made, "types.ts"));
run("npx", "svelte-check", "--tsconfig", "./tsconfig.json", "--fail-on-warnings", "--output", "human-verbose");
run("npx", "vite", "build", "--outDir", join(made, "ui"), "--emptyOutDir", "--logLevel", "warn");

if (!problems.length) {
  const same = (a, b) => readFileSync(a).equals(readFileSync(b));
  if (!same(join(made, "types.ts"), join(root, "src/lib/types.ts"))) problems.push("src/lib/types.ts is not that of docs/openapi.json");
  const files = readdirSync(join(made, "ui")).sort();
  if (files.join() !== readdirSync(committed).sort().join()) problems.push("the bundle has other files than the one that is committed");
  else for (const file of files) if (!same(join(made, "ui", file), join(committed, file))) problems.push(`${file} is not what the source makes`);
}
rmSync(made, { recursive: true });
if (problems.length) {
  console.error(problems.join("\n") + "\nrun make ui, and commit what it makes");
  process.exit(1);
}
