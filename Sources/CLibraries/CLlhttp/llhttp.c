#include "llhttp.h"
#if __has_include("/usr/share/llhttp/llhttp.c")
#include "/usr/share/llhttp/llhttp.c"
#endif
