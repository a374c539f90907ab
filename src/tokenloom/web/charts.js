// Draws the charts of a page. See README.md of this folder.
"use strict";
