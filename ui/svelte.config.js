import { readdirSync } from "node:fs";

// By the number of its file: short, and the same in every folder.
const files = readdirSync(new URL("src", import.meta.url), { recursive: true }).map(String).filter((file) => file.endsWith(".svelte")).sort();

export default {
  compilerOptions: {
    runes: true,
    cssHash: ({ filename }) => `s${files.findIndex((file) => filename.endsWith(`/src/${file}`)).toString(36)}`,
  },
};
