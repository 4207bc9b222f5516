#pragma once
#include <curl/curl.h>
// `curl_easy_setopt` and `curl_easy_getinfo` are variadic; Swift cannot import them.
static inline CURLcode heartline_curl_set_long(CURL *handle, CURLoption option, long value) {
    return curl_easy_setopt(handle, option, value);
}
static inline CURLcode heartline_curl_set_pointer(CURL *handle, CURLoption option, void *value) {
    return curl_easy_setopt(handle, option, value);
}
static inline CURLcode heartline_curl_set_text(CURL *handle, CURLoption option, const char *value) {
    return curl_easy_setopt(handle, option, value);
}
typedef size_t (*heartline_curl_data_callback)(char *bytes, size_t size, size_t count, void *context);
static inline CURLcode heartline_curl_set_callback(CURL *handle, CURLoption option,
                                                   heartline_curl_data_callback callback) {
    return curl_easy_setopt(handle, option, callback);
}
static inline CURLcode heartline_curl_get_long(CURL *handle, CURLINFO info, long *value) {
    return curl_easy_getinfo(handle, info, value);
}
static inline CURLcode heartline_curl_get_pointer(CURL *handle, CURLINFO info, void **value) {
    return curl_easy_getinfo(handle, info, value);
}
static inline CURLcode heartline_curl_get_offset(CURL *handle, CURLINFO info, curl_off_t *value) {
    return curl_easy_getinfo(handle, info, value);
}
static inline CURLMcode heartline_curl_multi_set_long(CURLM *handle, CURLMoption option, long value) {
    return curl_multi_setopt(handle, option, value);
}
typedef int (*heartline_curl_progress_callback)(void *context, curl_off_t download_total, curl_off_t downloaded,
                                                curl_off_t upload_total, curl_off_t uploaded);
static inline CURLcode heartline_curl_set_progress(CURL *handle, heartline_curl_progress_callback callback) {
    return curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, callback);
}
typedef curl_socket_t (*heartline_curl_socket_callback)(void *context, curlsocktype purpose,
                                                        struct curl_sockaddr *address);
static inline CURLcode heartline_curl_set_socket(CURL *handle, heartline_curl_socket_callback callback) {
    return curl_easy_setopt(handle, CURLOPT_OPENSOCKETFUNCTION, callback);
}
