#include "llhttp.h"
#if __has_include("/usr/share/llhttp/http.c")
#include "/usr/share/llhttp/http.c"
#endif
