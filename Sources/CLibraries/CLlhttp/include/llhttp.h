#pragma once
// Debian 12: package `node-llhttp` (provides `llhttp-dev`); Debian 13: `libllhttp-dev`.
#if __has_include("/usr/share/include/llhttp/llhttp.h")
#include "/usr/share/include/llhttp/llhttp.h"
#else
#include "/usr/include/llhttp.h"
#endif
