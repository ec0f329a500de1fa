#!/usr/bin/env node
import { fileURLToPath } from 'node:url';
import { launch } from './launch.js';

launch(fileURLToPath(new URL('../dist/cli/posthorn.js', import.meta.url)), process.argv.slice(2));
