#include "llhttp.h"
#if __has_include("/usr/share/llhttp/api.c")
#include "/usr/share/llhttp/api.c"
#endif
