// The scripts of a page are concatenated into one closure: names are shared between files, and tsc knows which exist.
import js from "@eslint/js";

export default [
  js.configs.recommended,
  {
    files: ["src/nearfield/**/*.js"],
    languageOptions: { sourceType: "script", ecmaVersion: 2023 },
    rules: {
      eqeqeq: "error",
      "max-len": ["error", 120],
      "max-lines-per-function": ["error", 60],
      "no-undef": "off",
      "no-unused-vars": ["error", { vars: "local" }],
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];
