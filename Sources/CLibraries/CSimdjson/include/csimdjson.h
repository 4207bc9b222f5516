#pragma once
// A C face for simdjson's DOM parser: reads one document, checks all of it, and hands out the
// fields that were asked for. The DOM interface is used because it validates what it skips.
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heartline_json heartline_json;

enum heartline_json_type {
    HEARTLINE_JSON_ABSENT = 0,
    HEARTLINE_JSON_NULL,
    HEARTLINE_JSON_FALSE,
    HEARTLINE_JSON_TRUE,
    HEARTLINE_JSON_INTEGER,
    HEARTLINE_JSON_NUMBER,
    HEARTLINE_JSON_STRING,
    HEARTLINE_JSON_ARRAY,
    HEARTLINE_JSON_OBJECT,
};

enum heartline_json_result {
    HEARTLINE_JSON_OK = 0,
    HEARTLINE_JSON_SYNTAX,      // not JSON, truncated, or invalid UTF-8
    HEARTLINE_JSON_TOO_DEEP,
    HEARTLINE_JSON_TOO_LARGE,
    HEARTLINE_JSON_DUPLICATE,   // a key stands twice in one object, at any depth
    HEARTLINE_JSON_NOT_OBJECT,
    HEARTLINE_JSON_NO_MEMORY,
};

typedef struct {
    const char *bytes;
    size_t length;
} heartline_json_name;

typedef struct {
    int32_t type;
    int32_t reserved;
    size_t length;       // of a string in bytes; of an array or object in elements
    const char *text;    // a string's unescaped bytes, valid until the next parse
    int64_t integer;
    double number;
} heartline_json_value;

heartline_json *heartline_json_new(size_t maximum_bytes, size_t maximum_depth);
void heartline_json_free(heartline_json *parser);

/// Parses one object and fills `values[i]` with the field `names[i]`.
int heartline_json_parse(heartline_json *parser, const uint8_t *bytes, size_t length,
                         const heartline_json_name *names, heartline_json_value *values,
                         size_t count);

/// Element `index` of the array that field `name` of the last document holds.
int heartline_json_element(heartline_json *parser, const heartline_json_name *name, size_t index,
                           heartline_json_value *value);

/// The same; an object's `text` and `length` are its JSON, valid until the next call or parse.
int heartline_json_element_object(heartline_json *parser, const heartline_json_name *name,
                                  size_t index, heartline_json_value *value);

/// The object that field `name` of the last document holds: `text` and `length` are its JSON, valid
/// until the next call or parse.
int heartline_json_field_object(heartline_json *parser, const heartline_json_name *name,
                                heartline_json_value *value);

/// A value inside the last document, until the next parse.
typedef struct {
    uint64_t words[2];
} heartline_json_node;

/// A way through an array.
typedef struct {
    uint64_t next[2];
    uint64_t end[2];
} heartline_json_walk;

/// The whole of the last document.
heartline_json_node heartline_json_root(const heartline_json *parser);
void heartline_json_read(heartline_json_node node, heartline_json_value *value);
/// Member `name` of an object; 0 if there is none, or `node` is no object.
int heartline_json_member(heartline_json_node node, const char *name, size_t length,
                          heartline_json_node *member);
/// Begins at the first element; a value that is no array has none.
heartline_json_walk heartline_json_begin(heartline_json_node node);
/// The next element; 0 behind the last.
int heartline_json_next(heartline_json_walk *walk, heartline_json_node *element);

/// Writes a finite number as the shortest text that reads as the same. `text` has room for 32 bytes.
size_t heartline_json_write_number(double number, char *text);

#ifdef __cplusplus
}
#endif
