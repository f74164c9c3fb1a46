import { defineConfig } from "vite";

// The charts of `stepscope report --html`: one script and one style that are put into the file itself.
export default defineConfig({
  build: {
    lib: {
      entry: "src/report.ts",
      formats: ["iife"],
      name: "stepscopeReport",
      fileName: () => "report.js",
      cssFileName: "report",
    },
    emptyOutDir: true,
    copyPublicDir: false,
    target: "es2022",
    cssCodeSplit: false,
    minify: true,
  },
});
