import { readdirSync } from "node:fs";

const files = readdirSync(new URL("src", import.meta.url), { recursive: true }).map(String).filter((file) => file.endsWith(".svelte")).sort();

export default {
  compilerOptions: {
    runes: true,
    // By the number of its file: short, and the same in every folder.
    cssHash: ({ filename }) => {
      const number = files.findIndex((file) => `/${filename}`.endsWith(`/src/${file}`));
      if (number < 0) throw new Error(`${filename} is not in src`);
      return `s${number.toString(36)}`;
    },
  },
};
