#include "csimdjson.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace simdjson;

struct heartline_json {
    dom::parser parser;
    dom::element document;
    size_t maximum_bytes;
    size_t maximum_depth;
    std::vector<char> padded;
    std::vector<std::string_view> keys;
    std::string object;
};

namespace {

void fill(const dom::element &element, heartline_json_value &value) {
    value = heartline_json_value{};
    switch (element.type()) {
    case dom::element_type::NULL_VALUE: value.type = HEARTLINE_JSON_NULL; break;
    case dom::element_type::BOOL:
        value.type = bool(element) ? HEARTLINE_JSON_TRUE : HEARTLINE_JSON_FALSE;
        break;
    case dom::element_type::INT64:
        value.type = HEARTLINE_JSON_INTEGER;
        value.integer = int64_t(element);
        value.number = double(value.integer);
        break;
    case dom::element_type::UINT64:
        value.type = HEARTLINE_JSON_NUMBER;
        value.number = double(uint64_t(element));
        break;
    case dom::element_type::DOUBLE:
        value.type = HEARTLINE_JSON_NUMBER;
        value.number = double(element);
        break;
    case dom::element_type::STRING: {
        std::string_view text = element;
        value.type = HEARTLINE_JSON_STRING;
        value.text = text.data();
        value.length = text.size();
        break;
    }
    case dom::element_type::ARRAY:
        value.type = HEARTLINE_JSON_ARRAY;
        value.length = dom::array(element).size();
        break;
    case dom::element_type::OBJECT:
        value.type = HEARTLINE_JSON_OBJECT;
        value.length = dom::object(element).size();
        break;
    }
}

// simdjson keeps repeated keys; RFC 8259 leaves their meaning open, so they are refused here.
bool has_duplicates(heartline_json *self, const dom::element &element);

bool object_has_duplicates(heartline_json *self, const dom::object &object) {
    size_t start = self->keys.size();
    for (auto field : object) {
        self->keys.push_back(field.key);
        if (has_duplicates(self, field.value)) return true;
    }
    auto first = self->keys.begin() + ptrdiff_t(start), last = self->keys.end();
    bool repeated = false;
    if (last - first <= 16) {
        for (auto a = first; a != last && !repeated; ++a)
            for (auto b = first; b != a; ++b)
                if (*a == *b) {
                    repeated = true;
                    break;
                }
    } else {
        std::sort(first, last);
        repeated = std::adjacent_find(first, last) != last;
    }
    self->keys.resize(start);
    return repeated;
}

bool has_duplicates(heartline_json *self, const dom::element &element) {
    switch (element.type()) {
    case dom::element_type::OBJECT: return object_has_duplicates(self, dom::object(element));
    case dom::element_type::ARRAY:
        for (auto item : dom::array(element))
            if (has_duplicates(self, item)) return true;
        return false;
    default: return false;
    }
}

}  // namespace

extern "C" heartline_json *heartline_json_new(size_t maximum_bytes, size_t maximum_depth) {
    auto *self = new (std::nothrow) heartline_json();
    if (!self) return nullptr;
    self->maximum_bytes = maximum_bytes;
    self->maximum_depth = maximum_depth;
    size_t initial = std::min<size_t>(maximum_bytes, 4096);
    if (self->parser.allocate(initial, maximum_depth) != SUCCESS) {
        delete self;
        return nullptr;
    }
    self->padded.resize(initial + SIMDJSON_PADDING);
    return self;
}

extern "C" void heartline_json_free(heartline_json *parser) { delete parser; }

extern "C" int heartline_json_parse(heartline_json *self, const uint8_t *bytes, size_t length,
                                    const heartline_json_name *names, heartline_json_value *values,
                                    size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = heartline_json_value{};
    self->keys.clear();
    if (length > self->maximum_bytes) return HEARTLINE_JSON_TOO_LARGE;
    if (length == 0) return HEARTLINE_JSON_SYNTAX;
    if (self->padded.size() < length + SIMDJSON_PADDING) {
        self->padded.resize(length + SIMDJSON_PADDING);
        if (self->parser.allocate(length, self->maximum_depth) != SUCCESS)
            return HEARTLINE_JSON_NO_MEMORY;
    }
    std::memcpy(self->padded.data(), bytes, length);
    std::memset(self->padded.data() + length, 0, SIMDJSON_PADDING);
    auto error = self->parser
                     .parse(reinterpret_cast<const uint8_t *>(self->padded.data()), length, false)
                     .get(self->document);
    switch (error) {
    case SUCCESS: break;
    case DEPTH_ERROR: return HEARTLINE_JSON_TOO_DEEP;
    case CAPACITY: return HEARTLINE_JSON_TOO_LARGE;
    case MEMALLOC: return HEARTLINE_JSON_NO_MEMORY;
    default: return HEARTLINE_JSON_SYNTAX;
    }
    dom::object object;
    if (self->document.get_object().get(object) != SUCCESS) {
        return has_duplicates(self, self->document) ? HEARTLINE_JSON_DUPLICATE
                                                    : HEARTLINE_JSON_NOT_OBJECT;
    }
    for (auto field : object) {
        std::string_view key = field.key;
        size_t i = 0;
        while (i < count && !(names[i].length == key.size() &&
                              std::memcmp(names[i].bytes, key.data(), key.size()) == 0))
            i++;
        if (i < count) {
            if (values[i].type != HEARTLINE_JSON_ABSENT) return HEARTLINE_JSON_DUPLICATE;
            fill(field.value, values[i]);
        } else {
            self->keys.push_back(key);
        }
        auto type = field.value.type();
        if ((type == dom::element_type::OBJECT || type == dom::element_type::ARRAY) &&
            has_duplicates(self, field.value))
            return HEARTLINE_JSON_DUPLICATE;
    }
    // Known names were compared above; what is left are the names nobody asked for.
    auto &keys = self->keys;
    if (keys.size() > 16) {
        std::sort(keys.begin(), keys.end());
        if (std::adjacent_find(keys.begin(), keys.end()) != keys.end())
            return HEARTLINE_JSON_DUPLICATE;
    } else {
        for (size_t a = 1; a < keys.size(); a++)
            for (size_t b = 0; b < a; b++)
                if (keys[a] == keys[b]) return HEARTLINE_JSON_DUPLICATE;
    }
    return HEARTLINE_JSON_OK;
}

extern "C" int heartline_json_element(heartline_json *self, const heartline_json_name *name,
                                      size_t index, heartline_json_value *value) {
    *value = heartline_json_value{};
    dom::array array;
    if (self->document[std::string_view(name->bytes, name->length)].get_array().get(array) != SUCCESS)
        return HEARTLINE_JSON_SYNTAX;
    for (auto item : array) {
        if (index-- == 0) {
            fill(item, *value);
            return HEARTLINE_JSON_OK;
        }
    }
    return HEARTLINE_JSON_OK;
}

extern "C" int heartline_json_element_object(heartline_json *self, const heartline_json_name *name,
                                             size_t index, heartline_json_value *value) {
    *value = heartline_json_value{};
    dom::array array;
    if (self->document[std::string_view(name->bytes, name->length)].get_array().get(array) != SUCCESS)
        return HEARTLINE_JSON_SYNTAX;
    dom::element element;
    if (array.at(index).get(element) != SUCCESS) return HEARTLINE_JSON_OK;
    fill(element, *value);
    if (value->type == HEARTLINE_JSON_OBJECT) {
        self->object = simdjson::minify(element);
        value->text = self->object.data();
        value->length = self->object.size();
    }
    return HEARTLINE_JSON_OK;
}

extern "C" int heartline_json_field_object(heartline_json *self, const heartline_json_name *name,
                                           heartline_json_value *value) {
    *value = heartline_json_value{};
    dom::element element;
    if (self->document[std::string_view(name->bytes, name->length)].get(element) != SUCCESS)
        return HEARTLINE_JSON_SYNTAX;
    fill(element, *value);
    if (value->type == HEARTLINE_JSON_OBJECT) {
        self->object = simdjson::minify(element);
        value->text = self->object.data();
        value->length = self->object.size();
    }
    return HEARTLINE_JSON_OK;
}

// Elements and iterators are a pointer and a place on simdjson's tape: they are handed out as they are.
using Iterator = dom::array::iterator;
static_assert(std::is_trivially_copyable<dom::element>::value &&
              sizeof(dom::element) == sizeof(heartline_json_node));
static_assert(std::is_trivially_copyable<Iterator>::value && sizeof(Iterator) == 2 * sizeof(uint64_t));

namespace {

heartline_json_node packed(const dom::element &element) {
    heartline_json_node node;
    std::memcpy(node.words, static_cast<const void *>(&element), sizeof node.words);
    return node;
}

dom::element unpacked(const heartline_json_node &node) {
    dom::element element;
    std::memcpy(static_cast<void *>(&element), node.words, sizeof node.words);
    return element;
}

}  // namespace

extern "C" heartline_json_node heartline_json_root(const heartline_json *self) {
    return packed(self->document);
}

extern "C" void heartline_json_read(heartline_json_node node, heartline_json_value *value) {
    fill(unpacked(node), *value);
}

extern "C" int heartline_json_member(heartline_json_node node, const char *name, size_t length,
                                     heartline_json_node *member) {
    dom::object object;
    dom::element found;
    if (unpacked(node).get_object().get(object) != SUCCESS) return 0;
    if (object.at_key(std::string_view(name, length)).get(found) != SUCCESS) return 0;
    *member = packed(found);
    return 1;
}

extern "C" heartline_json_walk heartline_json_begin(heartline_json_node node) {
    heartline_json_walk walk{};
    dom::array array;
    if (unpacked(node).get_array().get(array) != SUCCESS) return walk;
    Iterator begin = array.begin(), end = array.end();
    std::memcpy(walk.next, static_cast<const void *>(&begin), sizeof walk.next);
    std::memcpy(walk.end, static_cast<const void *>(&end), sizeof walk.end);
    return walk;
}

extern "C" int heartline_json_next(heartline_json_walk *walk, heartline_json_node *element) {
    // Nothing to walk through has no document.
    if (walk->end[0] == 0) return 0;
    Iterator next, end;
    std::memcpy(static_cast<void *>(&next), walk->next, sizeof walk->next);
    std::memcpy(static_cast<void *>(&end), walk->end, sizeof walk->end);
    if (!(next != end)) return 0;
    *element = packed(*next);
    ++next;
    std::memcpy(walk->next, static_cast<const void *>(&next), sizeof walk->next);
    return 1;
}

extern "C" size_t heartline_json_write_number(double number, char *text) {
    return size_t(std::to_chars(text, text + 32, number).ptr - text);
}
